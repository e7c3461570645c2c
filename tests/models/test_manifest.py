"""Manifests: calibrated probabilities, and folders of named models."""

import json
from pathlib import Path

import pytest

from mien.data.atomic import write_atomic
from mien.models import manifest as module
from mien.models.manifest import ArtifactError, artifact_dir, load_artifact, read_manifest
from tests.support import tiny_artifact


@pytest.mark.parametrize("name", ["model.fp32.onnx", "model.fp16.onnx", "card.md"])
def test_a_changed_file_of_an_artifact_is_refused(tmp_path: Path, name: str) -> None:
    folder = tiny_artifact(tmp_path / "tiny.test")
    assert load_artifact(folder) == read_manifest(folder)
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    with pytest.raises(ArtifactError, match=rf"artifact tiny\.test: .*/{name} has sha256"):
        load_artifact(folder)


@pytest.fixture
def artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three released models, two of which have names."""
    monkeypatch.setattr(module, "ARTIFACTS_DIR", tmp_path)
    for name in ("tiny.set_v2", "tiny.set_v3", "large.set_v3"):
        write_atomic(tmp_path / name / "manifest.json", "")
    (tmp_path / "ACCURATE").write_text("large.set_v3\n", encoding="utf-8")
    (tmp_path / "DEFAULT").write_text("tiny.set_v3\n", encoding="utf-8")
    return tmp_path


def test_models_have_names_of_which_the_end_suffices_if_only_one_has_it(artifacts: Path) -> None:
    assert artifact_dir("accurate") == artifacts / "large.set_v3"
    assert artifact_dir("fast") == artifact_dir(None) == artifact_dir("tiny.set_v3") == artifacts / "tiny.set_v3"
    assert artifact_dir("v2") == artifact_dir("set_v2") == artifacts / "tiny.set_v2"
    assert artifact_dir(artifacts / "mine") == artifacts / "mine"
    for name in ("fsat", "v3", "2"):
        with pytest.raises(ArtifactError, match=f"model '{name}': not an artifact folder.*one of fast, accurate"):
            artifact_dir(name)
    (artifacts / "ACCURATE").unlink()
    with pytest.raises(ArtifactError, match=r"model 'accurate': not in this release, .*ACCURATE .*It has: .*tiny\.set"):
        artifact_dir("accurate")


def test_a_folder_in_the_current_one_does_not_hide_a_model_of_its_name(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(artifacts)
    for name in ("fast", "mine"):
        (artifacts / name).mkdir()
    assert artifact_dir("fast") == artifacts / "tiny.set_v3"
    assert artifact_dir("./fast") == artifact_dir(Path("fast")) == Path("fast")
    assert artifact_dir("mine") == Path("mine")


def test_a_correction_of_another_number_of_labels_is_rejected(tmp_path: Path) -> None:
    path = tiny_artifact(tmp_path / "tiny.test") / "manifest.json"
    values = json.loads(path.read_text(encoding="utf-8")) | {"prior_correction": [0.1] * 6}
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ArtifactError, match=r"invalid manifest .*prior_correction .*not one per label"):
        read_manifest(path.parent)


def test_a_key_of_another_release_is_named(tmp_path: Path) -> None:
    path = tiny_artifact(tmp_path / "tiny.test") / "manifest.json"
    values = json.loads(path.read_text(encoding="utf-8")) | {"conditions": None}
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(ArtifactError, match="conditions: not known to this version"):
        read_manifest(path.parent)
