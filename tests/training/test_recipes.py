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
from mien.training.experiment import RUNS, recipes_of
from mien.training.losses import cross_entropy, distillation_loss
from mien.training.run_folder import parameters
from tests.support import ROOT
from tests.support.models import crops
from tests.support.training import TINY_DEIT, small_recipe, write_recipe

FOLDER = ROOT / "training" / "recipes"
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
def test_rows_build_networks_that_fit_their_distillation_and_learn_from_a_row_that_is_trained_before(
    path: Path,
) -> None:
    trained: dict[Path, Recipe] = {}
    for row, of_seeds in recipes_of(path, seeds=range(2)).items():
        for recipe in of_seeds:
            for folder in recipe.distillation.teachers:
                assert (trained[folder].seed, trained[folder].data.train) == (recipe.seed, recipe.data.train)
            trained[RUNS / recipe.name] = recipe
        model = of_seeds[0].model.model_copy(update={"pretrained": False})
        distilled = has_distillation_head(model.model_dump_json())
        assert distilled == of_seeds[0].distillation.mode.startswith("token-"), row


@cache
def has_distillation_head(model: str) -> bool:
    """Whether a network, which several experiments may have, has a distillation head."""
    config = ModelConfig.model_validate_json(model)
    with torch.inference_mode():
        heads = FaceNetwork(config).eval()(crops(2, channels=1 if config.color == "luminance" else 3))
    assert heads.class_logits.shape == (2, 7)
    return heads.distillation_logits is not None


def experiment(folder: Path, **changes: Any) -> Path:
    """Write an experiment with a teacher as a row, and its recipe."""
    write_recipe(folder / "student.yaml", small_recipe(folder / "faces", model=TINY_DEIT))
    taught = ["distillation.mode=token-soft", "distillation.teachers=[{runs}/kinds_cnn_{seed}]"]
    values: dict[str, Any] = {
        "base": "student.yaml",
        "seeds": [0, 1],
        "common": ["batch_size=6"],
        "matching": {"*_short": ["epochs=1", "batch_size=4"], "by_*": taught},
        "rows": {"none": [], "cnn": [], "by_cnn": [], "by_cnn_short": ["epochs=3"]},
    }
    path = folder / "kinds.yaml"
    path.write_text(yaml.safe_dump(values | changes, sort_keys=False), encoding="utf-8")
    return path


def test_a_row_changes_more_than_its_patterns_and_those_more_than_the_common_overrides(tmp_path: Path) -> None:
    rows = recipes_of(experiment(tmp_path))
    assert [(row[0].batch_size, row[0].epochs) for row in rows.values()] == [(6, 2), (6, 2), (6, 2), (4, 3)]
    assert [recipe.seed for recipe in rows["none"]] == [0, 1]


def test_the_rows_that_teach_a_chosen_row_are_trained_too_seed_by_seed(tmp_path: Path) -> None:
    path, runs = experiment(tmp_path), tmp_path / "runs"
    rows = recipes_of(path, rows=["by_cnn"], runs=runs)
    assert list(rows) == ["none", "cnn", "by_cnn"]
    teachers = [recipe.distillation.teachers for recipe in rows["by_cnn"]]
    assert teachers == [(runs / "kinds_cnn_0",), (runs / "kinds_cnn_1",)]
    assert list(recipes_of(path, rows=["none"])) == ["none"]
    with pytest.raises(RecipeError, match="no row fourier; it has none, cnn, by_cnn, by_cnn_short"):
        recipes_of(path, rows=["fourier"])


def test_a_grid_has_a_row_for_each_combination_of_values(tmp_path: Path) -> None:
    grid = {"optim.learning_rate": [1e-3, 5e-5], "optim.options": [{}, {"betas": [0.9, 0.95]}]}
    write_recipe(tmp_path / "student.yaml", small_recipe(tmp_path / "faces"))
    path = tmp_path / "sweep.yaml"
    path.write_text(yaml.safe_dump({"base": "student.yaml", "grid": grid}, sort_keys=False), encoding="utf-8")
    rows = {row: of_seeds[0] for row, of_seeds in recipes_of(path).items()}
    assert list(rows)[:3] == [
        "learning_rate_0_001_options", "learning_rate_0_001_options_betas_0_9_0_95", "learning_rate_5e_05_options",
    ]  # fmt: skip
    assert [recipe.optim.learning_rate for recipe in rows.values()] == [1e-3, 1e-3, 5e-5, 5e-5]
    assert [recipe.optim.options == {} for recipe in rows.values()] == [True, False] * 2
    same_name = {"base": "student.yaml", "grid": {"data.cache_dir": ["a/b", "a_b"]}}
    path.write_text(yaml.safe_dump(same_name), encoding="utf-8")
    with pytest.raises(RecipeError, match="two combinations would be row cache_dir_a_b"):
        recipes_of(path)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"matching": {"vit*": []}}, "no row matches 'vit\\*'"),
        ({"grid": {"epochs": [1, 2]}}, "grid and rows: choose one"),
        ({"plot": {"x": "faces", "panels": {"all": {"CNN": {10: "cnn_10"}}}}}, "no row cnn_10"),
    ],
)
def test_an_unknown_row_is_an_error(tmp_path: Path, changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        recipes_of(experiment(tmp_path, **changes))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("train", str(ROOT / "training" / "recipes")),
        ("cross-validate recipe.yaml --folds 1", "greater than or equal to 2"),
        ("experiment file.yaml --seeds 0", "greater than or equal to 1"),
        ("experiment file.yaml --plot figure.xls", "ends with .png or .svg or .pdf"),
        ("evaluate --artifact a --data ferplus", "expected KIND=ROOT"),
        ("report run --option classes", "expected KEY=VALUE"),
        ("detector export run --tag mine --threshold 1.5", "less than or equal to 0.99"),
        ("evaluate --artifact fast --data folders=faces --faces 5", "--corruptions"),
        ("evaluate --artifact fast --data folders=faces --corruptions --faces 0", "--faces"),
        ("export artifact --card --also muxspace/valid", "--also"),
        ("export artifact --refit --arch mine", "--arch"),
        ("export artifact --card --refit", "--refit"),
        ("export artifact --refit --head mean", "--head"),
        ("export artifact --conditions --tau 0.3", "--tau"),
        ("export artifact --card --without-conditions", "--without-conditions"),
    ],
)
def test_an_invalid_argument_and_one_that_would_do_nothing_are_explained(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(arguments.split()) == 2
    assert complaint in capsys.readouterr().err


def test_an_error_of_the_system_and_an_interruption_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path))
    full = OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")
    for error, status, message in ((full, 1, "error: [Errno 28]"), (KeyboardInterrupt(), 130, "interrupted;")):
        monkeypatch.setattr("mien.training.train.train", Mock(side_effect=error))
        assert main(["train", str(path)]) == status
        assert capsys.readouterr().err.startswith(message)
