"""A detector's manifest, verified file by file."""

import shutil
from pathlib import Path

import pytest

from mien.models.detector.manifest import POINTER, default_detector_dir, load_detector
from mien.models.manifest import ArtifactError, classifier_dirs
from tests.support import tiny_artifact


@pytest.mark.parametrize("name", ["model.onnx", "card.md"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(default_detector_dir(), tmp_path / "tiny.v1"))
    (folder / name).write_bytes(b"other")
    with pytest.raises(ArtifactError, match=name):
        load_detector(folder)


def test_a_missing_or_foreign_manifest_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot read"):
        load_detector(tmp_path / "absent.v1")
    with pytest.raises(ArtifactError, match="invalid manifest"):
        load_detector(tiny_artifact(tmp_path / "classifier.v1"))


def test_the_pointer_names_the_default(tmp_path: Path) -> None:
    (tmp_path / POINTER).write_text("tiny.v1\n", encoding="utf-8")
    assert default_detector_dir(tmp_path) == tmp_path / "tiny.v1"
    (tmp_path / POINTER).unlink()
    with pytest.raises(ArtifactError, match=POINTER):
        default_detector_dir(tmp_path)


def test_a_detector_is_not_listed_among_classifiers(tmp_path: Path) -> None:
    shutil.copytree(default_detector_dir(), tmp_path / "tiny.v1")
    tiny_artifact(tmp_path / "classifier.v1")
    assert classifier_dirs(tmp_path) == [tmp_path / "classifier.v1"]
