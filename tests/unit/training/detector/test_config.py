"""Recipes of detectors: headers, unknown keys and missing files."""

from pathlib import Path

import pytest
import torch

from mien.training.config import RecipeError, read_as
from mien.training.detector.config import MODELS_DIR_VARIABLE, DetectorRecipe
from mien.training.detector.train import build_detector
from mien.training.loop.optimizer import build_scheduler
from mien.training.loop.run_folder import parameters

FOLDER = Path(__file__).parents[4] / "training" / "recipes" / "detector"
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


def test_the_warm_up_is_a_small_share_of_the_steps() -> None:
    values = {"name": "mine", "steps": 1000, "data": {"folders": [{"name": "faces"}]}}
    recipe = DetectorRecipe.model_validate(values)
    weights = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.SGD([weights], lr=recipe.optim.learning_rate)
    scheduler = build_scheduler(optimizer, recipe.optim, epochs=1, steps_per_epoch=recipe.steps)
    rates = []
    for step in range(recipe.steps):
        scheduler.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    assert max(rates) == rates[20]
    assert rates[-1] < 0.1 * max(rates)
    with pytest.raises(ValueError, match="warmup_epochs 3 is more than epochs 1"):
        DetectorRecipe.model_validate(values | {"optim": {"warmup_epochs": 3}})
