"""Recipes, rows of experiments, and the commands of training."""

import errno
import re
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml

from mien.models.network import FaceNetwork
from mien.training.cli import main
from mien.training.config import ModelConfig, Recipe, RecipeError, read_as
from mien.training.distillation.losses import cross_entropy, distillation_loss
from mien.training.loop.run_folder import parameters
from mien.training.variants import RUNS, recipes_of
from tests.support import ROOT
from tests.support_models import crops
from tests.support_training import TINY_CNN, TINY_DEIT, small_recipe, write_recipe

FOLDER = Path(__file__).parents[3] / "training" / "recipes"


RECIPES = sorted(FOLDER.glob("*.yaml"))


EXPERIMENTS = sorted((FOLDER / "experiments").glob("*.yaml"))


def read(path: Path) -> Recipe:
    return read_as(Recipe, path, ["model.pretrained=false"])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_builds_a_network_of_the_size_it_states_that_learns(path: Path) -> None:
    recipe = read(path)
    assert recipe.name == path.stem
    weights = (*recipe.distillation.teachers, *filter(None, [recipe.model.init_from]))
    assert [path for path in weights if path.parts[0] != "runs" and not path.is_absolute()] == []
    network = FaceNetwork(recipe.model).train()
    count = parameters(network)
    stated = re.search(r"([\d.]+) M parameters", " ".join(path.read_text(encoding="utf-8").split("\n# ")))
    assert stated is not None
    assert float(stated[1]) == pytest.approx(count / 1e6, abs=0.051)
    pixels = crops(2, channels=1 if recipe.model.color == "luminance" else 3)
    heads = network(pixels)
    loss = cross_entropy(heads.class_logits, torch.eye(7)[:2])
    if recipe.distillation.teachers:
        loss = loss + distillation_loss(heads, torch.randn(2, 7), recipe.distillation)
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    silent = [name for name, weight in network.named_parameters() if weight.requires_grad and weight.grad is None]
    assert silent == []


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_row_of_an_experiment_builds_a_network_that_fits_its_distillation(path: Path) -> None:
    rows = {row: of_seeds[0] for row, of_seeds in recipes_of(path, reduced=False).items()}
    different = {(recipe.model.model_dump_json(), recipe.distillation.mode): row for row, recipe in rows.items()}
    for row in different.values():
        recipe = rows[row]
        distilled = has_distillation_head(recipe.model.model_copy(update={"pretrained": False}).model_dump_json())
        assert distilled == recipe.distillation.mode.startswith("token-"), row


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("reduced", [False, True])
def test_students_learn_from_a_row_of_their_seed_and_faces_that_is_trained_before(path: Path, reduced: bool) -> None:
    recipes = [recipe for of_seeds in recipes_of(path, reduced=reduced).values() for recipe in of_seeds]
    trained: dict[Path, Recipe] = {}
    for recipe in recipes:
        for folder in recipe.distillation.teachers:
            if folder.is_relative_to(RUNS):
                assert (trained[folder].seed, trained[folder].data.train) == (recipe.seed, recipe.data.train)
        trained[RUNS / recipe.name] = recipe
    assert len(trained) == len(recipes) >= 2


@cache
def has_distillation_head(model: str) -> bool:
    """Whether a network, which several experiments may have, has a distillation head."""
    config = ModelConfig.model_validate_json(model)
    with torch.inference_mode():
        heads = FaceNetwork(config).eval()(crops(2, channels=1 if config.color == "luminance" else 3))
    assert heads.class_logits.shape == (2, 7)
    return heads.distillation_logits is not None


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


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("train", str(ROOT / "training" / "recipes")),
        ("cross-validate recipe.yaml --folds 1", "greater than or equal to 2"),
        ("experiment file.yaml --seeds 0", "greater than or equal to 1"),
        ("experiment file.yaml --plot figure.xls", "ends with .png or .svg or .pdf"),
        ("evaluate --artifact a --data ferplus", "expected KIND=ROOT"),
        ("report run --option classes", "expected KEY=VALUE"),
        ("detector export run --tag mine --threshold 1.5", "expected a number between 0 and 1"),
    ],
)
def test_an_invalid_argument_is_explained(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(arguments.split()) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"), 1, "error: [Errno 28] No space left on "),
        (KeyboardInterrupt(), 130, "interrupted; rerun the same command to resume"),
    ],
)
def test_an_error_of_the_system_and_an_interruption_are_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    message: str,
) -> None:
    path = write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path))
    monkeypatch.setattr("mien.training.train.train", Mock(side_effect=error))
    assert main(["train", str(path)]) == status
    assert capsys.readouterr().err.startswith(message)
