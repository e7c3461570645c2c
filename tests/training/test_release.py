"""From images to an artifact: teacher, distilled student, export, evaluation, and errors."""

import json
import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from mien.data.contract import LABELS
from mien.data.quality import softmax
from mien.data.readers.folders import Folders
from mien.models.manifest import load_artifact, read_report, sha256_of, write_manifest
from mien.models.network import select_head
from mien.models.rollout import recorded_attention, rollout
from mien.training import evaluate, export, graphs
from mien.training.cli import main
from mien.training.config import shareable
from mien.training.run import read_run_info
from mien.training.weights import load_trained
from tests.support import ROOT
from tests.support.training import drawn_faces, small_recipe, valid_faces
from tests.training.conftest import Trained


@pytest.fixture
def copied(trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the artifact, whose faces are found."""
    (tmp_path / "folders").symlink_to(trained.faces)
    monkeypatch.setenv("MIEN_DATA_DIR", str(tmp_path))
    return Path(shutil.copytree(trained.artifact, tmp_path / trained.artifact.name))


def test_the_artifact_is_valid_and_describes_itself(trained: Trained) -> None:
    manifest, report = load_artifact(trained.artifact), read_report(trained.artifact)
    assert trained.artifact.name == manifest.name == "tiny.drawn"
    assert manifest.labels == LABELS
    assert report["weights_from"] == {"teacher": sha256_of(trained.teacher / "best.pt")}
    assert list(report["learned_from"]) == ["folders/train"]
    assert manifest.explain == (7, 7)
    assert "class folders: those of the owner of the images" in manifest.license
    assert Folders.limits in (trained.artifact / "card.md").read_text(encoding="utf-8")
    assert manifest.commit == read_run_info(trained.student)["commit"]
    names = "model.onnx model.fp16.onnx photo.onnx model.safetensors manifest.json report.json card.md"
    assert {path.name for path in trained.artifact.iterdir()} == {*names.split()}
    assert str(trained.faces.parent) not in (trained.artifact / "report.json").read_text(encoding="utf-8")
    stored = report["scores"]["fp32"][0]
    model, faces = evaluate.open_model(trained.artifact), valid_faces(trained.faces)
    own = evaluate.scores_of_model(model, faces, model.logits(faces.crops))[0]
    assert own["accuracy"].value == stored["accuracy"]["value"]
    assert own["nll"].value != stored["nll"]["value"], "cross-fitted"


@pytest.mark.parametrize(("precision", "difference"), [("fp32", 1e-5), ("fp16", 1e-2)])
def test_released_graphs_equal_the_weights_of_run_and_release_for_any_batch_and_color_and_have_an_attention_map(
    trained: Trained, precision: Literal["fp32", "fp16"], difference: float
) -> None:
    crops = valid_faces(trained.faces).crops
    (network, head, _), (released, *about) = load_trained(trained.student), load_trained(trained.artifact)
    assert about == [head, LABELS]
    manifest = load_artifact(trained.artifact)
    session = evaluate.open_graph(trained.artifact / manifest.graph(precision).file)
    for batch in (crops[:1], crops[:5], graphs.tinted(crops)):
        with torch.no_grad(), recorded_attention(network.backbone) as attentions:
            expected, same = (select_head(of(torch.from_numpy(batch)), head) for of in (network, released))
        torch.testing.assert_close(same, expected, atol=1e-4, rtol=1e-4)
        logits, maps = session.run(["logits", "relevance"], {"crops": batch})
        np.testing.assert_allclose(softmax(logits), expected.softmax(-1), atol=difference)
        np.testing.assert_allclose(maps, rollout(attentions, head=head), atol=difference)
        np.testing.assert_allclose(maps.sum(axis=(1, 2)), 1.0, atol=difference)


def test_a_graph_that_differs_from_torch_or_in_fp16_is_not_released(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", "absent")  # A folder of another disk cannot be renamed to the artifact.
    truth = evaluate.predict
    monkeypatch.setattr(export, "write_graph", lambda _, path: shutil.copy(trained.artifact / "model.onnx", path))
    monkeypatch.setattr(export, "predict", lambda *given, head: truth(*given, head=head) + np.eye(7)[0] * 0.01)
    with pytest.raises(graphs.ExportError, match="differ from torch"):
        export.export(trained.student, "wrong", artifacts_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []
    logits = np.eye(7)[np.arange(1000) % 7]
    assert graphs.check_fp16(logits, logits) == 1.0
    with pytest.raises(graphs.ExportError, match=r"99\.80 %"):
        graphs.check_fp16(logits, np.r_[logits[:998], np.roll(logits[998:], 1, axis=1)])


def test_a_released_name_and_faces_that_the_record_of_a_run_lacks_are_rejected_before_the_export(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "write_graphs", pytest.fail)
    with pytest.raises(FileExistsError, match="never overwritten: choose another --tag"):
        export.export(trained.student, "drawn", artifacts_dir=trained.artifact.parent)
    for tag, arch, option in (("a/b", "own", "--tag"), ("a", "own/b", "--arch")):
        with pytest.raises(graphs.ExportError, match=f"{option} .* it names a folder"):
            export.export(trained.student, tag, arch=arch, artifacts_dir=tmp_path)
    report = read_report(trained.artifact)
    report["recipe"] |= {"epochs": 99, "name": "drawn_all", "select": "last"}
    with pytest.raises(graphs.ExportError, match="trained with another epochs, not the same recipe"):
        export._calibrated_by(trained.artifact, load_artifact(trained.artifact), report)
    root = Path(shutil.copytree(trained.faces, tmp_path / "folders"))
    next((root / "train").rglob("*.png")).replace(root / "valid" / "fear" / "moved.png")
    run = Path(shutil.copytree(trained.student, tmp_path / "run"))
    (run / "recipe.yaml").write_text((run / "recipe.yaml").read_text().replace(str(trained.faces), str(root)))
    with pytest.raises(graphs.ExportError, match=r"folders valid changed since the training"):
        export.export(run, "drawn", artifacts_dir=tmp_path / "artifacts")


def test_an_artifact_is_fitted_and_scored_again(trained: Trained, copied: Path) -> None:
    before, faces = load_artifact(copied), copied.with_name("folders")
    write_manifest(copied, before.model_copy(update={"temperature": 9.0}))
    assert main(["export", str(copied), "--refit"]) == 0
    assert load_artifact(copied) == before
    assert (copied / "card.md").read_bytes() == (trained.artifact / "card.md").read_bytes()
    faces.unlink()
    drawn_faces(faces, valid=1)
    assert main(["export", str(copied), "--refit"]) == 1
    assert load_artifact(copied) == before


def test_license_card_and_pointer_are_rewritten_without_data_and_with_the_same_metrics(
    trained: Trained, copied: Path
) -> None:
    copied.with_name("folders").unlink()
    before, command = load_artifact(copied), ["export", str(copied), "--photos", str(ROOT / "samples/photos")]
    write_manifest(copied, before.model_copy(update={"license": "old words"}))
    (copied / "card.md").write_text("new card, old manifest: killed in between", encoding="utf-8")
    assert main([*command, "--default", "--artifacts", str(copied.parent)]) == 0
    assert (copied.parent / "DEFAULT").read_text(encoding="utf-8").strip() == copied.name
    assert load_artifact(copied) == before
    assert (copied / "card.md").read_bytes() == (trained.artifact / "card.md").read_bytes()


def test_the_license_names_third_party_weights_whatever_their_terms_say() -> None:
    terms = {"published": "MIT by its authors", "other": "CC0, of the file, not of the photos"}
    license_ = export.license_of(["folders/train"], terms)
    assert all(f"Initialized from {name}: {text}." in license_ for name, text in terms.items())


def test_a_released_recipe_has_no_path_of_this_machine(tmp_path: Path) -> None:
    model = {"family": "mobilefacenet", "name": "mobilefacenet", "options": {"weights": str(tmp_path / "file.pt")}}
    distillation = {"mode": "hard", "teachers": [str(tmp_path / "far" / "runs" / "teacher")]}
    recipe = small_recipe(tmp_path / "faces", model=model, distillation=distillation)
    values = shareable(recipe)
    assert str(tmp_path) not in json.dumps(values)
    assert values["distillation"]["teachers"] == ["runs/teacher"]
