"""Manifests: calibrated probabilities, and folders of named models."""

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


@pytest.mark.parametrize("name", ["model.fp32.onnx", "model.fp16.onnx", "card.md"])
def test_a_changed_file_of_an_artifact_is_refused(tmp_path: Path, name: str) -> None:
    folder = tiny_artifact(tmp_path / "tiny.test")
    assert load_artifact(folder) == read_manifest(folder)
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    with pytest.raises(ArtifactError, match=rf"artifact tiny\.test: .*/{name} has sha256"):
        load_artifact(folder)


@pytest.mark.parametrize("name", ["model.onnx", "card.md"])
def test_a_damaged_file_and_a_missing_or_foreign_manifest_are_named(tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(default_detector_dir(), tmp_path / "tiny.v1"))
    (folder / name).write_bytes(b"other")
    for found, message in (
        (folder, name),
        (tmp_path / "absent.v1", "cannot read"),
        (tiny_artifact(tmp_path / "classifier.v1"), "invalid manifest"),
    ):
        with pytest.raises(ArtifactError, match=message):
            load_detector(found)


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three released models, one of which is the default."""
    monkeypatch.setattr(module, "ARTIFACTS_DIR", tmp_path)
    for name in ("tiny.set_v2", "tiny.set_v3", "large.set_v3"):
        write_atomic(tmp_path / name / "manifest.json", "")
    (tmp_path / "DEFAULT").write_text("tiny.set_v3\n", encoding="utf-8")
    return tmp_path


def test_models_have_names_of_which_the_end_suffices_if_only_one_has_it(artifacts: Path) -> None:
    assert artifact_dir("fast") == artifact_dir(None) == artifact_dir("tiny.set_v3") == artifacts / "tiny.set_v3"
    assert artifact_dir("v2") == artifact_dir("set_v2") == artifacts / "tiny.set_v2"
    assert artifact_dir(artifacts / "mine") == artifacts / "mine"
    for name in ("fsat", "v3", "2"):
        with pytest.raises(ArtifactError, match=f"model '{name}': not an artifact folder.*one of fast, large"):
            artifact_dir(name)
    (artifacts / "DEFAULT").unlink()
    with pytest.raises(ArtifactError, match=r"model 'fast': not in this release, .*DEFAULT .*It has: .*tiny\.set"):
        artifact_dir("fast")


def test_a_folder_in_the_current_one_does_not_hide_a_model_of_its_name(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(artifacts)
    for name in ("fast", "mine"):
        (artifacts / name).mkdir()
    assert artifact_dir("fast") == artifacts / "tiny.set_v3"
    assert artifact_dir("./fast") == artifact_dir(Path("fast")) == Path("fast")
    assert artifact_dir("mine") == Path("mine")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("prior_correction", [0.1] * 6, r"invalid manifest .*prior_correction .*not one per label"),
        ("conditions", None, "conditions: not known to this version"),
    ],
)
def test_a_manifest_with_a_wrong_or_unknown_value_is_rejected(
    tmp_path: Path, key: str, value: object, message: str
) -> None:
    path = tiny_artifact(tmp_path / "tiny.test") / "manifest.json"
    values = json.loads(path.read_text(encoding="utf-8")) | {key: value}
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ArtifactError, match=message):
        read_manifest(path.parent)
