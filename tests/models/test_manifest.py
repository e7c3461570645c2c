"""Manifests: calibrated probabilities, and folders of named models."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest

from mien.data.atomic import write_atomic
from mien.models import manifest as module
from mien.models.manifest import (
    ArtifactError,
    artifact_dir,
    default_detector_dir,
    load_artifact,
    load_detector,
    read_manifest,
)
from tests.support import tiny_artifact


def test_a_damaged_file_and_a_missing_or_foreign_manifest_are_named(tmp_path: Path) -> None:
    for load, name in (
        *((load_artifact, name) for name in ("model.fp32.onnx", "photo.onnx", "card.md")),
        *((load_detector, name) for name in ("model.onnx", "card.md")),
    ):
        folder = tmp_path / f"{load.__name__}.{name}"
        if load is load_detector:
            shutil.copytree(default_detector_dir(), folder)
        else:
            photo_graph = {"fp32": {"file": "photo.onnx", "sha256": hashlib.sha256(b"").hexdigest()}}
            tiny_artifact(folder, photo_graphs=photo_graph)
            (folder / "photo.onnx").write_bytes(b"")
        assert load(folder)
        (folder / name).write_bytes(b"other")
        with pytest.raises(ArtifactError, match=rf"artifact load_.*/{name} has sha256"):
            load(folder)
    for found, message in ((tmp_path / "absent.v1", "cannot read"), (tiny_artifact(tmp_path / "tiny"), "invalid")):
        with pytest.raises(ArtifactError, match=message):
            load_detector(found)


def test_models_have_names_that_no_folder_hides_and_of_which_an_end_suffices_if_only_one_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = tmp_path
    monkeypatch.setattr(module, "ARTIFACTS_DIR", artifacts)
    for name in ("tiny.set_v2", "tiny.set_v3", "large.set_v3"):
        write_atomic(artifacts / name / "manifest.json", "")
    (artifacts / "DEFAULT").write_text("tiny.set_v3\n", encoding="utf-8")
    monkeypatch.chdir(artifacts)
    for name in ("fast", "mine"):
        (artifacts / name).mkdir()
    assert artifact_dir("./fast") == artifact_dir(Path("fast")) == Path("fast")
    assert artifact_dir("mine") == Path("mine")
    assert artifact_dir("fast") == artifact_dir(None) == artifact_dir("tiny.set_v3") == artifacts / "tiny.set_v3"
    assert artifact_dir("v2") == artifact_dir("set_v2") == artifacts / "tiny.set_v2"
    assert artifact_dir(artifacts / "mine") == artifacts / "mine"
    for name in ("fsat", "v3", "2"):
        with pytest.raises(ArtifactError, match=f"model '{name}': not an artifact folder.*one of fast, large"):
            artifact_dir(name)
    (artifacts / "DEFAULT").unlink()
    with pytest.raises(ArtifactError, match=r"model 'fast': not in this release, .*DEFAULT .*It has: .*tiny\.set"):
        artifact_dir("fast")


def test_a_manifest_with_a_wrong_or_unknown_value_is_rejected(tmp_path: Path) -> None:
    path = tiny_artifact(tmp_path / "tiny.test") / "manifest.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    changes: tuple[tuple[dict[str, object], str], ...] = (
        ({"prior_correction": [0.1] * 6}, r"invalid manifest .*prior_correction .*not one per label"),
        ({"agreement": {"temperature": 1, "offsets": [0.1] * 6}}, r"agreement\.offsets .*not one per label"),
        ({"labels": ["a", "a", *values["labels"][2:]]}, "labels: .*at least two different names"),
        ({"files": {"../card.md": "0" * 64}}, r"files\.\.\./card\.md.*: String should match pattern"),
        ({"conditions": None}, "conditions: not known to this version"),
        ({"contract_id": "0123456789ab"}, "contract 0123456789ab, this build .* check out commit 0000"),
    )
    for change, message in changes:
        path.write_text(json.dumps(values | change), encoding="utf-8")
        with pytest.raises(ArtifactError, match=message):
            read_manifest(path.parent)
