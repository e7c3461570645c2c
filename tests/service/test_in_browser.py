"""Facts for the page, with the settings of the service; tests/e2e/browser/test_local.py runs the graph with them."""

import shutil
from pathlib import Path

import pytest

from mien.app.service.page import browser_pipeline
from mien.app.settings import Settings
from mien.models.manifest import ArtifactError, artifact_dir
from tests.support import tiny_artifact


def test_settings_of_the_service_become_inputs_of_the_graph() -> None:
    folder = artifact_dir(None)
    usual = browser_pipeline(folder, Settings())
    assert usual.facts["graph"]["defaults"] == {"max_faces": (200,)}
    assert usual.graph == folder / "photo.int8.onnx"
    changes = {"prior": "natural", "max_faces": 3, "min_face_px": 24, "detection_threshold": 0.77}
    facts = browser_pipeline(folder, Settings(**changes)).facts
    expected = {"max_faces": (3,), "score_threshold": (0.77,), "prior_correction": (0.0,) * 7}
    assert facts["graph"]["defaults"] == expected
    assert facts["limits"]["min_face_px"] == 24


def test_without_a_photo_graph_there_is_no_local_mode(tmp_path: Path) -> None:
    found = browser_pipeline(tiny_artifact(tmp_path / "tiny.test"), Settings())
    assert (found.graph, found.facts["graph"]) == (None, None)


def test_a_damaged_photo_graph_is_not_served(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(artifact_dir(None), tmp_path / artifact_dir(None).name))
    (folder / "photo.int8.onnx").write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match=r"photo\.int8\.onnx has sha256"):
        browser_pipeline(folder, Settings())
