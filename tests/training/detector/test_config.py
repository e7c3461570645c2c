"""Recipes of detectors: headers, unknown keys and missing files."""

from pathlib import Path

import pytest

from mien.training.config import RecipeError, read_as
from mien.training.detector.config import MODELS_DIR_VARIABLE, DetectorRecipe
from mien.training.detector.train import build_detector
from mien.training.run_folder import parameters
from tests.support import ROOT

FOLDER = ROOT / "training" / "recipes" / "detector"
RECIPES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_states_its_command_and_cost(path: Path) -> None:
    head = path.read_text(encoding="utf-8").partition("\nname:")[0]
    recipe = read_as(DetectorRecipe, path, [])
    assert recipe.name == path.stem
    assert f"mien detector train training/recipes/detector/{path.name}" in head
    assert "minutes" in head
    assert f"{parameters(build_detector(recipe.model)):,}" in head


def test_a_missing_teacher_names_the_command_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODELS_DIR_VARIABLE, str(tmp_path))
    with pytest.raises(RecipeError, match="mien models pull"):
        read_as(DetectorRecipe, RECIPES[0], []).data.resolved_teacher()
