"""Experiments: variants of a recipe, trained on drawn faces and compared in one table."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.support_training import TINY_DEIT, drawn_faces, small_recipe
from training.config import RecipeError
from training.experiment import as_markdown, compare, main, recipes_of, run_rows

EXPERIMENTS = sorted((Path(__file__).parents[3] / "training" / "recipes" / "experiments").glob("*.yaml"))


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two rows over a tiny student on drawn faces: two epochs, reduced to one."""
    base = small_recipe(drawn_faces(tmp_path / "faces"), model=TINY_DEIT)
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base.model_dump(mode="json")), encoding="utf-8")
    values = {
        "base": "base.yaml",
        "seeds": [0, 1],
        "reduced": {"seeds": [3], "overrides": ["epochs=1"]},
        "rows": {"learned": [], "none": ["model.options.position=none"]},
    }
    path = tmp_path / "position.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("reduced", [False, True])
def test_every_experiment_gives_recipes_of_distinct_names(path: Path, reduced: bool) -> None:
    recipes = [recipe for of_seeds in recipes_of(path, reduced=reduced).values() for recipe in of_seeds]
    assert len({recipe.name for recipe in recipes}) == len(recipes) >= 2
    assert f"python -m training.experiment training/recipes/experiments/{path.name}" in path.read_text(encoding="utf-8")


def test_rows_differ_from_the_base_only_in_their_overrides(experiment: Path) -> None:
    full, small = recipes_of(experiment, reduced=False), recipes_of(experiment, reduced=True)
    assert [recipe.seed for recipe in full["none"]] == [0, 1]
    assert [(recipe.seed, recipe.epochs) for recipe in small["none"]] == [(3, 1)]
    learned, none = (small[row][0].model_dump(exclude={"name"}) for row in ("learned", "none"))
    assert none["model"]["options"].pop("position") == "none"
    assert learned == none


def test_every_head_of_a_row_is_compared_with_the_first_row_face_by_face(experiment: Path, tmp_path: Path) -> None:
    recipes = recipes_of(experiment, reduced=True)
    folders = run_rows(recipes, tmp_path / "runs")
    results = compare(recipes, folders)
    assert [(result.row, result.head) for result in results] == [
        (row, head) for row in ("learned", "none") for head in ("class", "distillation", "mean")
    ]
    logged = json.loads((folders["none"][0] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    chosen = {result.row: result for result in results if result.chosen}
    assert chosen["none"].accuracy.value == pytest.approx(logged["valid_accuracy"])
    assert chosen["learned"].gain.value == chosen["learned"].gain.high == 0
    difference = chosen["none"].accuracy.value - chosen["learned"].accuracy.value
    assert chosen["none"].gain.value == pytest.approx(difference)
    assert all(result.minutes > 0 and np.isfinite(result.minutes) for result in results)
    assert as_markdown(results).count("\n| ") == 6


def test_a_finished_run_is_not_trained_again(experiment: Path, tmp_path: Path) -> None:
    recipes = recipes_of(experiment, reduced=True)
    folders = run_rows(recipes, tmp_path / "runs")
    before = (folders["none"][0] / "best.pt").stat().st_mtime_ns
    run_rows(recipes, tmp_path / "runs")
    assert (folders["none"][0] / "best.pt").stat().st_mtime_ns == before


def test_the_first_row_always_runs_and_an_unknown_row_lists_the_known_ones(experiment: Path) -> None:
    assert list(recipes_of(experiment, reduced=True, rows=["none"])) == ["learned", "none"]
    with pytest.raises(RecipeError, match="no row fourier; it has learned, none"):
        recipes_of(experiment, reduced=True, rows=["fourier"])


def test_a_missing_experiment_is_a_clear_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main([str(tmp_path / "absent.yaml")]) == 1
    assert "absent.yaml" in caplog.text
