"""Experiments: variants of a recipe, trained on drawn faces and compared in one table."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from mien.data.contract import LABELS
from mien.training import experiment as command
from mien.training.config import Recipe, RecipeError
from mien.training.experiment import compare, main, run_rows
from mien.training.report.comparison import as_markdown
from mien.training.train import train
from mien.training.variants import recipes_of
from tests.data_sets import ferplus_votes, make_ferplus
from tests.support_training import TINY_DEIT, drawn_faces, small_recipe, write_recipe

EXPERIMENTS = sorted((Path(__file__).parents[3] / "training" / "recipes" / "experiments").glob("*.yaml"))


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two rows over a tiny student on drawn faces: two epochs, reduced to one."""
    write_recipe(tmp_path / "base.yaml", small_recipe(drawn_faces(tmp_path / "faces"), model=TINY_DEIT))
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
    assert f"mien experiment training/recipes/experiments/{path.name}" in path.read_text(encoding="utf-8")


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
    assert chosen["none"].accuracy.mean.value == pytest.approx(logged["valid_accuracy"])
    assert chosen["learned"].gain.value == chosen["learned"].gain.high == 0
    difference = chosen["none"].accuracy.mean.value - chosen["learned"].accuracy.mean.value
    assert chosen["none"].gain.value == pytest.approx(difference)
    assert all(result.minutes > 0 and np.isfinite(result.minutes) for result in results)
    assert as_markdown(results).count("\n| ") == 6


def test_the_first_row_always_runs_and_an_unknown_row_lists_the_known_ones(experiment: Path) -> None:
    assert list(recipes_of(experiment, reduced=True, rows=["none"])) == ["learned", "none"]
    with pytest.raises(RecipeError, match="no row fourier; it has learned, none"):
        recipes_of(experiment, reduced=True, rows=["fourier"])


def test_seeds_give_their_mean_and_deviation_and_a_test_against_the_first_row_each(
    experiment: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(experiment), "--reduced", "--seeds", "2", "--runs", str(tmp_path / "runs")]) == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        f"position_{row}_{seed}" for row in ("learned", "none") for seed in (0, 1)
    }
    assert "±" in capsys.readouterr().out
    recipes = recipes_of(experiment, reduced=True, seeds=range(2))
    results = compare(recipes, run_rows(recipes, tmp_path / "runs"))
    for result in results:
        for figures in (result.accuracy, result.mean_class_accuracy):
            assert figures.mean.value == pytest.approx(np.mean(figures.by_seed))
            assert len(figures.by_seed) == result.seeds == 2
    assert [len(result.mcnemar_p) for result in results if result.chosen] == [0, 2]


@pytest.fixture
def dry_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The experiment on the amount of data, with tiny networks, on a drawn FERPlus."""
    clear = [ferplus_votes(label) for label in LABELS]
    make_ferplus(tmp_path / "sets" / "ferplus", {"FER2013Train": clear * 20, "FER2013Valid": clear})
    monkeypatch.setenv("MIEN_DATA_DIR", str(tmp_path / "sets"))
    source = next(path for path in EXPERIMENTS if path.stem == "data_amount")
    values = yaml.safe_load(source.read_text(encoding="utf-8"))
    values["base"] = str((source.parent / values["base"]).resolve())
    tiny = values["reduced"]["matching"]
    every = [f"data.cache_dir={tmp_path / 'cache'}", "batch_size=8", "epochs=1", "runtime.workers=0",
             "data.train.0.options={}"]  # fmt: skip
    tiny["*"] = every
    tiny["[vh]*"] = ["model.options.depth=1"]
    tiny["*"] += ["model.options.embed_dim=24", "model.options.num_heads=2"]
    path = tmp_path / "data_amount.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    rows = "cnn_10,cnn_30,hybrid_taught_10,hybrid_taught_30,vit_10"
    plot = tmp_path / "figure.png"
    return [str(path), "--reduced", "--rows", rows, "--runs", str(tmp_path / "runs"), "--plot", str(plot)]


def test_an_interrupted_experiment_is_resumed_by_the_same_command_and_ends_with_table_and_figure(
    dry_run: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []

    def interrupted(recipe: Recipe, out: Path) -> Path:
        started.append(recipe.name)
        if len(started) == 4:
            raise KeyboardInterrupt
        return train(recipe, out)

    with monkeypatch.context() as patch:
        patch.setattr(command, "train", interrupted)
        assert main(dry_run) == 130
    assert started == ["data_amount_cnn_10_0", "data_amount_cnn_10_1", "data_amount_cnn_30_0", "data_amount_cnn_30_1"]
    before = {path.name: (path / "best.pt").stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert list(before) != []
    assert not (tmp_path / "figure.png").exists()

    assert main(dry_run) == 0
    assert {name: (tmp_path / "runs" / name / "best.pt").stat().st_mtime_ns for name in before} == before
    table = capsys.readouterr().out
    assert [line.split(" | ")[0] for line in table.splitlines() if " * | " in line] == [
        "| cnn_10", "| cnn_30", "| vit_10", "| hybrid_taught_10", "| hybrid_taught_30",
    ]  # fmt: skip
    assert (tmp_path / "figure.png").stat().st_size > 5000
    facts = json.loads((tmp_path / "runs" / "data_amount_hybrid_taught_30_1" / "run.json").read_text(encoding="utf-8"))
    assert list(facts["weights_from"]) == ["data_amount_cnn_30_1"]


def test_a_figure_of_an_unknown_format_is_refused_before_training(
    dry_run: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*dry_run[:-1], "figure.xls"])
    assert "ends with .png or .svg" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
