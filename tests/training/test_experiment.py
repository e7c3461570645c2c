"""Experiments: variants of a recipe compared in one table; cross-validation; and paired comparison of two models."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from mien.models.manifest import artifact_dir
from mien.training import evaluate
from mien.training.cli import main
from mien.training.evaluate import PRIORS
from mien.training.experiment import recipes_of, run
from mien.training.export import export
from mien.training.graphs import ExportError
from mien.training.run import read_run_info
from tests.support.training import TINY_DEIT, drawn_faces, metric_lines, small_recipe, write_recipe
from tests.training.conftest import Trained


def test_rows_are_compared_with_the_first_one_face_by_face_and_seed_by_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, runs = drawn_faces(tmp_path / "faces", train=3, valid=2), tmp_path / "runs"
    experiment = tmp_path / "depth.yaml"
    write_recipe(tmp_path / "base.yaml", small_recipe(root, model=TINY_DEIT))
    values = {
        "base": "base.yaml",
        "common": ["epochs=1", "batch_size=6"],
        "matching": {
            "*w": ["batch_size=4", "epochs=3", "distillation={mode: soft, teachers: ['{runs}/depth_deep_{seed}']}"]
        },
        "rows": {"deep": [], "shallow": ["epochs=2", "model.options.depth=1"]},
    }
    experiment.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    files = {"table": "table.csv", "json": "results.json"}
    written = [part for name, file in files.items() for part in (f"--{name}", str(tmp_path / file))]
    assert main(["experiment", str(experiment), "--seeds", "2", "--runs", str(runs), *written]) == 0
    assert "±" in capsys.readouterr().out
    lines = (tmp_path / "table.csv").read_text(encoding="utf-8").splitlines()
    assert [line["row"] for line in csv.DictReader(lines)] == ["deep", "shallow"]
    assert len(json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))[1]["scores"]) == 2
    rows = recipes_of(experiment, seeds=2, runs=runs)
    assert [(row, of[0].batch_size, of[0].epochs) for row, of in rows.items()] == [("deep", 6, 1), ("shallow", 4, 2)]
    assert [of.distillation.teachers for of in rows["shallow"]] == [(runs / f"depth_deep_{of}",) for of in range(2)]
    deep, shallow = run(rows, runs)
    logged = metric_lines(runs / "depth_shallow_0")[-1]
    assert shallow["scores"][0]["accuracy"].value == pytest.approx(logged["valid_accuracy"])
    assert deep["gain"].value == deep["gain"].high == 0
    for result in (deep, shallow):
        by_seed = [of_seed["accuracy"].value for of_seed in result["scores"]]
        assert result["accuracy"].value == pytest.approx(np.mean(by_seed))
    assert shallow["gain"].value == pytest.approx(shallow["accuracy"].value - deep["accuracy"].value)


def test_cross_validation_scores_every_face_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = drawn_faces(tmp_path / "faces", train=6, valid=1)
    recipe = write_recipe(tmp_path / "recipe.yaml", small_recipe(root, epochs=1))
    assert main(["cross-validate", str(recipe), "--folds", "3", "--runs", str(tmp_path / "runs")]) == 0
    assert "41 faces" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {f"small_fold_{fold}" for fold in range(3)}
    run_info = read_run_info(tmp_path / "runs" / "small_fold_0")
    assert (sum(run_info["faces"].values()), len(run_info["faces"]), len(run_info["learned_from"])) == (41, 2, 1)
    with pytest.raises(ExportError, match="fold of a cross-validation"):
        export(tmp_path / "runs" / "small_fold_0", "fold", artifacts_dir=tmp_path)


def test_gains_are_paired_by_face() -> None:
    labels = np.repeat([0, 1], 50)
    before, after = labels.copy(), labels.copy()
    before[:10] = after[:5] = 1
    sides = [0.8 * np.eye(2)[classes] + 0.1 for classes in (before, after)]
    found = evaluate.gains(sides[0], sides[1], labels)
    loss, gain = found["nll"], found["accuracy"]
    assert loss.value == pytest.approx(-0.05 * np.log(0.9 / 0.1))
    assert loss.low < loss.value < loss.high < 0
    assert gain.value == pytest.approx(found["mean_class_accuracy"].value) == pytest.approx(0.05)
    assert 0 <= gain.low < gain.high < 0.12
    assert {label: recall.value for label, recall in found["recall"].items()} == pytest.approx(
        {"surprise": 0.1, "fear": 0}
    )
    few = evaluate.gains(sides[0][21:], sides[1][21:], labels[21:])
    assert (*few, *few["recall"]) == ("nll", "accuracy", "mean_class_accuracy", "recall", "fear"), "29 are surprised"
    assert "surprise" in evaluate.gains(sides[0][20:], sides[1][20:], labels[20:])["recall"]
    assert [*evaluate.gains(sides[0][71:], sides[1][71:], labels[71:])] == ["nll", "recall"]


def test_an_artifact_equals_itself_and_is_compared_with_its_prior(trained: Trained, tmp_path: Path) -> None:
    file, data = tmp_path / "gains.json", ["--data", f"folders={trained.faces}"]
    losses = []
    for prior in PRIORS:
        command = ["compare", str(artifact_dir(None)), "fast", *data, "--prior", prior, "--json", str(file)]
        assert main(command) == 0
        results = json.loads(file.read_text(encoding="utf-8"))
        assert {of["prior"] for of in results["scores"]} == {prior}
        assert results["gains"]["nll"] == {"value": 0, "low": 0, "high": 0}
        losses.append(results["scores"][0]["nll"]["value"])
    assert losses[0] != losses[1]
