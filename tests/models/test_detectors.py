"""The detector: decoding of its outputs, its artifact, and YuNet's graph."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest

from mien.app.inference.detector import SCORE_THRESHOLD, to_blob
from mien.app.inference.detector_files import dynamic_graph
from mien.models.manifest import DETECTOR_OUTPUTS as OUTPUTS
from mien.models.manifest import DETECTOR_STRIDES as STRIDES
from mien.models.manifest import ArtifactError, default_detector_dir, load_detector
from tests.support import folder_from_environment, sample_photo, tiny_artifact


@pytest.mark.parametrize("name", ["model.onnx", "card.md"])
def test_a_damaged_file_and_a_missing_or_foreign_manifest_are_named(tmp_path: Path, name: str) -> None:
    folder = Path(shutil.copytree(default_detector_dir(), tmp_path / "tiny.v1"))
    (folder / name).write_bytes(b"other")
    with pytest.raises(ArtifactError, match=name):
        load_detector(folder)
    with pytest.raises(ArtifactError, match="cannot read"):
        load_detector(tmp_path / "absent.v1")
    with pytest.raises(ArtifactError, match="invalid manifest"):
        load_detector(tiny_artifact(tmp_path / "classifier.v1"))


def test_boxes_are_computed_only_of_grids_with_a_score_of_the_threshold() -> None:
    graph = default_detector_dir() / "model.onnx"
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    feed = {"input": to_blob(cv2.resize(cv2.imread(str(sample_photo())), (320, 320)), (320, 320))}
    every, some = (
        dict(zip(OUTPUTS, session.run(list(OUTPUTS), feed | chosen), strict=True))
        for chosen in ({}, {SCORE_THRESHOLD: np.array(0.8, np.float32)})
    )
    best = {stride: np.sqrt(every[f"cls_{stride}"] * every[f"obj_{stride}"]).max() for stride in STRIDES}
    computed = {name: np.array_equal(every[name], some[name]) for name in OUTPUTS}
    assert set(computed.values()) == {True, False}
    assert computed == {
        name: name.startswith(("cls", "obj")) or best[int(name.partition("_")[2])] >= 0.8 for name in OUTPUTS
    }


def _sizes(model: onnx.ModelProto) -> set[int]:
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    return {dim.dim_value for value in values for dim in value.type.tensor_type.shape.dim}


def test_only_the_declared_sizes_of_the_published_file_change() -> None:
    path = folder_from_environment("MIEN_MODELS_DIR") / "face_detection_yunet_2023mar.onnx"
    before, after = onnx.load(path), onnx.load_from_string(dynamic_graph(path))
    onnx.checker.check_model(after)
    assert _sizes(after) == {0, 3, 4, 10, 16, 32, 64}
    assert list(after.graph.node) == list(before.graph.node)
    assert list(after.graph.initializer) == list(before.graph.initializer)
    assert after.opset_import == before.opset_import
