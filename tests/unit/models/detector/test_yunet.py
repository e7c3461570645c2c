"""YuNet's graph with a dynamic input size, checked with the `onnx` package and ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mien.models.detector.yunet import dynamic_graph
from tests.support import folder_from_environment


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
