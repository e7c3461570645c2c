"""Rows of experiments: patterns, placeholders, teachers among the rows, and the smaller budget."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from mien.training.config import RecipeError
from mien.training.variants import recipes_of
from tests.support_training import TINY_CNN, TINY_DEIT, small_recipe, write_recipe


def experiment(folder: Path, **changes: Any) -> Path:
    """Write an experiment with a teacher as a row, and the recipes of student and teacher."""
    for name, model in (("student", TINY_DEIT), ("teacher", TINY_CNN)):
        write_recipe(folder / f"{name}.yaml", small_recipe(folder / "faces", model=model))
    taught = ["distillation.mode=token-soft", "distillation.teachers=[{runs}/kinds_cnn_{seed}]"]
    values: dict[str, Any] = {
        "base": "student.yaml",
        "bases": {"cnn": "teacher.yaml"},
        "seeds": [0, 1],
        "matching": {"*_short": ["epochs=1"], "by_*": taught},
        "reduced": {"seeds": [5], "overrides": ["batch_size=6"], "matching": {"by_cnn": ["batch_size=4"]}},
        "rows": {"none": [], "cnn": [], "by_cnn": [], "by_cnn_short": []},
    }
    path = folder / "kinds.yaml"
    path.write_text(yaml.safe_dump(values | changes, sort_keys=False), encoding="utf-8")
    return path


def test_a_pattern_changes_the_rows_that_it_matches(tmp_path: Path) -> None:
    rows = recipes_of(experiment(tmp_path), reduced=False)
    assert {row: of_seeds[0].epochs for row, of_seeds in rows.items()} == {
        "none": 2, "cnn": 2, "by_cnn": 2, "by_cnn_short": 1,
    }  # fmt: skip
    small = recipes_of(experiment(tmp_path), reduced=True)
    assert [small[row][0].batch_size for row in ("by_cnn", "by_cnn_short")] == [4, 6]
    assert [[recipe.seed for recipe in of_seeds["none"]] for of_seeds in (rows, small)] == [[0, 1], [5]]


def test_a_row_may_vary_another_recipe_and_teach_the_others_seed_by_seed(tmp_path: Path) -> None:
    rows = recipes_of(experiment(tmp_path), reduced=False, runs=tmp_path / "runs")
    assert [row[0].model.family for row in rows.values()] == ["deit", "cnn", "deit", "deit"]
    teachers = [recipe.distillation.teachers for recipe in rows["by_cnn"]]
    assert teachers == [(tmp_path / "runs" / "kinds_cnn_0",), (tmp_path / "runs" / "kinds_cnn_1",)]


def test_the_rows_that_teach_a_chosen_row_are_trained_too(tmp_path: Path) -> None:
    path = experiment(tmp_path)
    assert list(recipes_of(path, reduced=False, rows=["by_cnn"])) == ["none", "cnn", "by_cnn"]
    assert list(recipes_of(path, reduced=False, rows=["none"])) == ["none"]
    with pytest.raises(RecipeError, match="no row fourier; it has none, cnn, by_cnn, by_cnn_short"):
        recipes_of(path, reduced=False, rows=["fourier"])
    short = experiment(tmp_path, reduced={"seeds": [0], "rows": ["by_cnn_short"]})
    assert list(recipes_of(short, reduced=True)) == ["none", "cnn", "by_cnn_short"]
    assert list(recipes_of(short, reduced=False)) == ["none", "cnn", "by_cnn", "by_cnn_short"]


def test_a_grid_has_a_row_for_each_combination_of_values(tmp_path: Path) -> None:
    grid = {"optim.learning_rate": [1e-3, 5e-5], "optim.options": [{}, {"betas": [0.9, 0.95]}]}
    write_recipe(tmp_path / "student.yaml", small_recipe(tmp_path / "faces"))
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": "student.yaml", "grid": grid}, sort_keys=False), encoding="utf-8")
    rows = {row: of_seeds[0] for row, of_seeds in recipes_of(path, reduced=False).items()}
    assert list(rows)[:3] == [
        "learning_rate_0_001_options", "learning_rate_0_001_options_betas_0_9_0_95", "learning_rate_5e_05_options",
    ]  # fmt: skip
    assert [recipe.optim.learning_rate for recipe in rows.values()] == [1e-3, 1e-3, 5e-5, 5e-5]
    assert [recipe.optim.options == {} for recipe in rows.values()] == [True, False] * 2
    with pytest.raises(RecipeError, match="no reduced budget"):
        recipes_of(path, reduced=True)
    same_name = {"base": "student.yaml", "grid": {"data.cache_dir": ["a/b", "a_b"]}}
    path.write_text(yaml.safe_dump(same_name), encoding="utf-8")
    with pytest.raises(RecipeError, match="two combinations would be row cache_dir_a_b"):
        recipes_of(path, reduced=False)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"matching": {"vit*": []}}, "no row matches 'vit\\*'"),
        ({"grid": {"epochs": [1, 2]}}, "grid and rows: choose one"),
        ({"bases": {"vit": "student.yaml"}}, "no row vit; it has none, cnn, by_cnn, by_cnn_short"),
        ({"plot": {"x": "faces", "panels": {"all": {"CNN": {10: "cnn_10"}}}}}, "no row cnn_10"),
    ],
)
def test_an_unknown_row_is_an_error(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        recipes_of(experiment(tmp_path, **changes), reduced=False)
