"""Cross-validation, and paired comparison of two artifacts."""

from pathlib import Path

import numpy as np
import pytest

from mien.models.manifest import artifact_dir, load_artifact
from mien.training.cli import main
from mien.training.evaluate import PRIORS, compare, open_graph, open_model, run_graph
from mien.training.release.export import export
from mien.training.release.graphs import ExportError
from mien.training.run_folder import read_facts
from tests.support.training import drawn_faces, small_recipe, valid_faces, write_recipe
from tests.training.conftest import Trained


def test_cross_validation_scores_every_face_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = drawn_faces(tmp_path / "faces", train=6, valid=1)
    recipe = write_recipe(tmp_path / "recipe.yaml", small_recipe(root, epochs=1))
    assert main(["cross-validate", str(recipe), "--folds", "3", "--runs", str(tmp_path / "runs")]) == 0
    shown = capsys.readouterr().out
    assert "41 faces" in shown
    assert len(shown.split("accuracy by fold, %: ")[1].split(", ")) == 3
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {f"small_fold_{fold}" for fold in range(3)}
    facts = read_facts(tmp_path / "runs" / "small_fold_0")
    assert (sum(facts["faces"].values()), len(facts["faces"]), len(facts["learned_from"])) == (41, 2, 1)
    with pytest.raises(ExportError, match="fold of a cross-validation"):
        export([tmp_path / "runs" / "small_fold_0"], "fold", artifacts_dir=tmp_path)
    assert main(["report", str(tmp_path / "runs" / "small_fold_0")]) == 1
    assert "a fold of a cross-validation" in capsys.readouterr().err
    taught = ["data.train.0.target=teacher", "distillation.mode=soft", "distillation.teachers=[fast]"]
    assert main(["cross-validate", str(recipe), *taught, "--runs", str(tmp_path / "taught")]) == 1
    assert "folders: validation needs labels" in capsys.readouterr().err
    assert not (tmp_path / "taught").exists()


def test_gains_are_paired_by_face() -> None:
    labels = np.repeat([0, 1], 50)
    before, after = labels.copy(), labels.copy()
    before[:10] = after[:5] = 1
    sides = [0.8 * np.eye(2)[classes] + 0.1 for classes in (before, after)]
    found = {row.name: row for row in compare(sides[0], sides[1], labels)}
    loss = found["negative log likelihood"]
    assert loss.gain.value == pytest.approx(-0.05 * np.log(0.9 / 0.1))
    assert loss.gain.low < loss.gain.value < loss.gain.high < 0
    assert (found["accuracy"].before, found["accuracy"].after) == (0.9, 0.95)
    assert found["accuracy"].gain.value == pytest.approx(0.05)
    assert 0 <= found["accuracy"].gain.low < found["accuracy"].gain.high < 0.12
    assert found["recall, surprise"].gain.value == pytest.approx(0.1)


def test_both_sides_are_named_and_an_artifact_is_compared_with_its_prior(
    trained: Trained, capsys: pytest.CaptureFixture[str]
) -> None:
    artifact, data = str(artifact_dir(None)), ["--data", f"folders={trained.faces}"]
    assert main(["compare", artifact, "fast", *data]) == 0
    shown = capsys.readouterr().out
    assert "+0.00 (+0.00 to +0.00)" in shown
    assert "McNemar's test: p = 1" in shown
    assert main(["compare", artifact, str(trained.teacher), *data, "--prior", "natural"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "run teacher" in shown
    assert "natural" in shown
    faces = valid_faces(trained.faces)
    model = open_model(Path(artifact))
    natural, balanced = (model.probabilities(model.logits(faces.crops), prior).argmax(axis=1) for prior in PRIORS)
    manifest = load_artifact(Path(artifact))
    logits = run_graph(open_graph(Path(artifact) / manifest.graph("fp32").file), faces.crops)
    assert natural.tolist() == logits.argmax(axis=1).tolist()
    assert balanced.tolist() == manifest.probabilities(logits, "balanced").argmax(axis=1).tolist()
