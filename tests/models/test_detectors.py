"""The detector: decoding of its outputs, its network and artifact, and YuNet's graph."""

import shutil
from pathlib import Path

import cv2
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from mien.data.contract import Array
from mien.models.detector.decode import KINDS, OUTPUTS, SCORE_THRESHOLD, STRIDES, decode_grids, to_blob
from mien.models.detector.manifest import POINTER, default_detector_dir, load_detector
from mien.models.detector.network import FaceFPN, Released
from mien.models.detector.yunet import dynamic_graph
from mien.models.manifest import ArtifactError, classifier_dirs
from tests.support import folder_from_environment, sample_photo, tiny_artifact

SIDE = 64


def _grids(**faces: tuple[int, int, float]) -> dict[str, Array]:
    """Empty outputs for an image of 64 px, with faces as stride_N=(column, row, score), each of four cells."""
    grids = {
        f"{kind}_{stride}": np.zeros((1, (SIDE // stride) ** 2, width), np.float32)
        for kind, width in zip(KINDS, (1, 1, 4, 10), strict=True)
        for stride in STRIDES
    }
    for name, (column, row, score) in faces.items():
        stride = int(name.removeprefix("stride_"))
        cell = row * (SIDE // stride) + column
        grids[f"cls_{stride}"][0, cell] = grids[f"obj_{stride}"][0, cell] = score
        grids[f"bbox_{stride}"][0, cell] = [0.5, 0.5, np.log(4), np.log(4)]
        grids[f"kps_{stride}"][0, cell] = np.tile([1.0, -1.0], 5)
    return grids


def _decode(grids: dict[str, Array], threshold: float = 0.6) -> Array:
    return decode_grids(grids, cells_across=SIDE // np.array(STRIDES), threshold=threshold)


def test_a_cell_places_its_face_relative_to_its_corner() -> None:
    (row,) = _decode(_grids(stride_8=(3, 2, 0.9)))
    assert row[:4] == pytest.approx([28 - 16, 20 - 16, 32, 32])
    assert row[4:14].reshape(5, 2) == pytest.approx(np.tile([32.0, 8.0], (5, 1)))
    assert row[14] == pytest.approx(0.9)
    assert _decode(_grids(stride_32=(0, 0, 0.5))).shape == (0, 15)  # below the threshold


def test_nms_keeps_the_better_of_two_overlapping_faces() -> None:
    rows = _decode(_grids(stride_8=(3, 3, 0.7), stride_16=(1, 1, 0.9)))
    assert sorted(rows[:, 14]) == pytest.approx([0.7, 0.9])  # 32 px within 64 px: little overlap
    same = _grids(stride_8=(3, 3, 0.7))
    same["cls_8"][0, 3 * 8 + 4] = same["obj_8"][0, 3 * 8 + 4] = 0.8
    same["bbox_8"][0, 3 * 8 + 4] = [-0.5, 0.5, np.log(4), np.log(4)]
    assert _decode(same)[:, 14] == pytest.approx([0.8])


def test_an_image_is_padded_to_whole_cells_in_planes() -> None:
    image = np.arange(40 * 33 * 3, dtype=np.uint8).reshape(40, 33, 3)
    blob = to_blob(image)
    assert (blob.shape, blob.dtype) == ((1, 3, 64, 64), np.float32)
    assert np.array_equal(blob[0, :, :40, :33].transpose(1, 2, 0), image)
    assert blob[0, :, 40:].max() == 0


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


@pytest.fixture(scope="module")
def network() -> FaceFPN:
    torch.manual_seed(0)
    return FaceFPN((4, 8, 8, 8, 8), (1, 1, 1, 1), 8).eval()


def test_the_release_has_yunets_outputs(network: FaceFPN) -> None:
    outputs = dict(zip(OUTPUTS, Released(network)(torch.rand(2, 3, 64, 96) * 255), strict=True))
    for stride in STRIDES:
        cells = 64 * 96 // stride**2
        widths = {kind: outputs[f"{kind}_{stride}"].shape for kind in ("cls", "obj", "bbox", "kps")}
        assert widths == {"cls": (2, cells, 1), "obj": (2, cells, 1), "bbox": (2, cells, 4), "kps": (2, cells, 10)}
        assert 0 < outputs[f"cls_{stride}"].min() <= outputs[f"cls_{stride}"].max() < 1


def test_training_starts_from_few_faces_with_a_mean_face(network: FaceFPN) -> None:
    grid = network(torch.zeros(1, 3, 64, 64))[0]
    assert grid.cls.sigmoid().max() < 0.05
    left_eye, right_eye = grid.kps[0, :2, 4, 4], grid.kps[0, 2:4, 4, 4]
    middle, width = grid.bbox[0, :2, 4, 4], grid.bbox[0, 2, 4, 4].exp()
    assert torch.allclose((right_eye - left_eye)[0] / width, torch.tensor(0.4), atol=0.1)
    assert left_eye[0] < middle[0] < right_eye[0]


def test_boxes_are_computed_only_of_grids_with_a_score_of_the_threshold() -> None:
    graph = default_detector_dir() / "model.onnx"
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    feed = {"input": to_blob(cv2.resize(cv2.imread(str(sample_photo())), (320, 320)))}
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


def _doubling(side: int) -> bytes:
    """A graph with the shape (1, 3, side, side) for its input, its output and a value between them."""
    shape = [1, 3, side, side]
    names = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "middle", "y")]
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    nodes = [helper.make_node("Mul", ["x", "two"], ["middle"]), helper.make_node("Relu", ["middle"], ["y"])]
    graph = helper.make_graph(nodes, "doubling", [names[0]], [names[2]], [two], value_info=[names[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def _sizes(model: onnx.ModelProto) -> set[int]:
    values = [*model.graph.input, *model.graph.output, *model.graph.value_info]
    return {dim.dim_value for value in values for dim in value.type.tensor_type.shape.dim}


@pytest.mark.parametrize("side", [20, 640, 6400])
def test_a_graph_of_fixed_size_runs_at_any_size(side: int, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(_doubling(side))
    graph = dynamic_graph(tmp_path / "model.onnx")
    assert _sizes(onnx.load_from_string(graph)) == {0, 1, 3}
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    image = np.ones((1, 3, 32, 96), np.float32)
    assert np.array_equal(session.run(None, {"x": image})[0], image * 2)


def test_only_the_declared_sizes_of_the_published_file_change() -> None:
    path = folder_from_environment("MIEN_MODELS_DIR") / "face_detection_yunet_2023mar.onnx"
    before, after = onnx.load(path), onnx.load_from_string(dynamic_graph(path))
    onnx.checker.check_model(after)
    assert _sizes(after) == {0, 1, 3, 4, 10, 16, 32, 64}
    assert list(after.graph.node) == list(before.graph.node)
    assert list(after.graph.initializer) == list(before.graph.initializer)
    assert after.opset_import == before.opset_import
