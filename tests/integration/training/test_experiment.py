"""Experiments: variants of a recipe, trained on drawn faces and compared in one table."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from mien.data.contract import LABELS
from mien.training.config import Recipe
from mien.training.experiment import compare, main, run_rows
from mien.training.variants import RUNS, recipes_of
from tests.data_sets import ferplus_votes, make_ferplus
from tests.support_training import TINY_DEIT, drawn_faces, small_recipe, write_recipe

EXPERIMENTS = sorted((Path(__file__).parents[3] / "training" / "recipes" / "experiments").glob("*.yaml"))


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two rows over a tiny student on drawn faces: two epochs, reduced to one."""
    root = drawn_faces(tmp_path / "faces", train=3, valid=2)
    write_recipe(tmp_path / "base.yaml", small_recipe(root, model=TINY_DEIT))
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
def test_students_of_every_experiment_learn_from_a_row_of_their_seed_and_faces_that_is_trained_before(
    path: Path, reduced: bool
) -> None:
    recipes = [recipe for of_seeds in recipes_of(path, reduced=reduced).values() for recipe in of_seeds]
    trained: dict[Path, Recipe] = {}
    for recipe in recipes:
        for folder in recipe.distillation.teachers:
            if folder.is_relative_to(RUNS):
                assert (trained[folder].seed, trained[folder].data.train) == (recipe.seed, recipe.data.train)
        trained[RUNS / recipe.name] = recipe
    assert len(trained) == len(recipes) >= 2


def test_every_head_is_compared_with_the_first_row_face_by_face_and_seed_by_seed(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    assert main([str(experiment), "--reduced", "--seeds", "2", "--runs", str(runs)]) == 0
    assert {path.name for path in runs.iterdir()} == {
        f"position_{row}_{seed}" for row in ("learned", "none") for seed in (0, 1)
    }
    table = capsys.readouterr().out
    assert "±" in table
    assert table.count("\n| ") == 7
    recipes = recipes_of(experiment, reduced=True, seeds=range(2), runs=runs)
    folders = run_rows(recipes, runs)
    results = compare(recipes, folders)
    assert [(result.row, result.head) for result in results] == [
        (row, head) for row in ("learned", "none") for head in ("class", "distillation", "mean")
    ]
    logged = [json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1]) for folder in folders["none"]]
    chosen = {result.row: result for result in results if result.chosen}
    assert chosen["none"].accuracy.by_seed[0] == pytest.approx(logged[0]["valid_accuracy"])
    assert chosen["learned"].gain.value == chosen["learned"].gain.high == 0
    assert [len(chosen[row].mcnemar_p) for row in ("learned", "none")] == [0, 2]
    for result in results:
        assert result.minutes > 0
        for figures in (result.accuracy, result.mean_class_accuracy):
            assert figures.mean.value == pytest.approx(np.mean(figures.by_seed))
            assert len(figures.by_seed) == result.seeds == 2
    difference = chosen["none"].accuracy.mean.value - chosen["learned"].accuracy.mean.value
    assert chosen["none"].gain.value == pytest.approx(difference)


def test_an_experiment_with_a_teacher_ends_with_table_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clear = [ferplus_votes(label) for label in LABELS]
    make_ferplus(tmp_path / "sets" / "ferplus", {"FER2013Train": clear * 10, "FER2013Valid": clear})
    monkeypatch.setenv("MIEN_DATA_DIR", str(tmp_path / "sets"))
    source = next(path for path in EXPERIMENTS if path.stem == "data_amount")
    values = yaml.safe_load(source.read_text(encoding="utf-8"))
    values["base"] = str((source.parent / values["base"]).resolve())
    values["reduced"]["matching"] |= {
        "*": [
            f"data.cache_dir={tmp_path / 'cache'}", "batch_size=7", "epochs=1", "runtime.workers=0",
            "data.train.0.options={}", "optim.warmup_epochs=0", "model.options.embed_dim=24",
            "model.options.num_heads=2",
        ],
        "h*": ["model.options.depth=1"],
    }  # fmt: skip
    path, runs = tmp_path / "data_amount.yaml", tmp_path / "runs"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    plot, curves = tmp_path / "figure.png", tmp_path / "curves.png"
    arguments = [str(path), "--reduced", "--rows", "cnn_10,hybrid_taught_10", "--runs", str(runs)]
    arguments += ["--plot", str(plot), "--curves", str(curves)]
    assert main(arguments) == 0
    table = capsys.readouterr().out
    assert [line.split(" | ")[0] for line in table.splitlines() if " * | " in line] == [
        "| cnn_10",
        "| hybrid_taught_10",
    ]
    assert min(plot.stat().st_size, curves.stat().st_size) > 5000
    facts = json.loads((runs / "data_amount_hybrid_taught_10_1" / "run.json").read_text(encoding="utf-8"))
    assert list(facts["weights_from"]) == ["data_amount_cnn_10_1"]
