"""Graphs for a browser, and settings that reach it; tests/page compares its computations."""

from pathlib import Path

from mien.app.service.in_browser import browser_pipeline
from mien.app.settings import Settings
from tests.support import tiny_artifact


def test_the_settings_of_the_service_are_those_of_the_browser(artifact: Path) -> None:
    settings = Settings(prior="natural", detect_rotated=False, min_face_px=24, detection_threshold=0.77)
    facts = browser_pipeline(artifact, settings).facts
    assert facts["search"]["detect_rotated"] is False
    assert facts["limits"]["min_face_px"] == 24
    assert facts["detector"]["threshold"] == 0.77
    assert facts["classifier"]["offsets"] == (0.0,) * 7


def test_webassembly_runs_int8_where_there_is_one_and_a_gpu_does_not(tmp_path: Path) -> None:
    folder = tiny_artifact(tmp_path / "tiny.test", precisions=("fp32", "int8"))
    found = browser_pipeline(folder, Settings())
    chosen = {where: graph["precision"] for where, graph in found.facts["classifier"]["graphs"].items()}
    assert chosen == {"wasm": "int8", "webgpu": "fp32"}
    assert set(found.graphs) == {"detector.onnx", "classifier.int8.onnx", "classifier.fp32.onnx"}
