"""Constants and graphs for a browser: those of the pipeline."""

from pathlib import Path

import pytest

from mien.app.inference.detect import search
from mien.app.inference.in_browser import browser_pipeline
from mien.app.settings import Settings
from mien.models.detector.manifest import default_detector_dir, load_detector
from mien.models.manifest import read_manifest
from tests.support import tiny_artifact


def test_a_browser_gets_the_numbers_of_the_manifests_and_the_settings(artifact: Path) -> None:
    settings = Settings(detection_px=320, detect_rotated=False, min_face_px=24)
    facts = browser_pipeline(artifact, settings).facts
    manifest, detector = read_manifest(artifact), load_detector(default_detector_dir())
    assert facts["classifier"]["temperature"] == manifest.temperature
    assert facts["classifier"]["confidence_threshold"] == manifest.confidence_threshold
    assert facts["detector"]["threshold"] == detector.score_threshold
    assert facts["limits"]["min_face_px"] == 24
    assert (facts["search"]["first_px"], facts["search"]["detect_rotated"]) == (320, False)
    assert facts["search"]["merge_iou"] == search.MERGE_IOU
    assert " ".join(facts["colors"]) == "surprise fear disgust happiness sadness anger neutral contempt"
    assert facts["colors"]["disgust"] == (0, 158, 115)
    assert facts["reasons"] == ("small", "blurred", "turned", "dark", "covered", "ambiguous")
    assert (facts["tracking"]["lead"], len(facts["tracking"]["mean_face"])) == (0.08, 64)


@pytest.mark.parametrize("prior", ["natural", "balanced"])
def test_the_prior_correction_is_applied_as_the_settings_say(tmp_path: Path, prior: str) -> None:
    correction = (0.5, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5)
    folder = tiny_artifact(tmp_path / "tiny.test", prior_correction=correction)
    facts = browser_pipeline(folder, Settings(prior=prior)).facts
    assert facts["classifier"]["offsets"] == (correction if prior == "balanced" else (0.0,) * 7)


def test_webassembly_runs_int8_where_there_is_one_and_a_gpu_does_not(tmp_path: Path) -> None:
    folder = tiny_artifact(tmp_path / "tiny.test", precisions=("fp32", "int8"))
    found = browser_pipeline(folder, Settings())
    chosen = {where: graph["precision"] for where, graph in found.facts["classifier"]["graphs"].items()}
    assert chosen == {"wasm": "int8", "webgpu": "fp32"}
    assert set(found.graphs) == {"detector.onnx", "classifier.int8.onnx", "classifier.fp32.onnx"}
