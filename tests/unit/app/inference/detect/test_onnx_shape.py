"""Freeing the declared sizes of a graph, by bytes alone; the `onnx` package is the judge."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from app.inference.detect.onnx_shape import NotOnnx, with_free_dimensions
from tests.support import folder_from_environment, tiny_graph


def doubling(side: int) -> bytes:
    """A graph that declares (1, 3, side, side) in and out, with a recorded shape in between."""
    shape = [1, 3, side, side]
    names = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "middle", "y")]
    two = numpy_helper.from_array(np.array(2, np.float32), "two")
    nodes = [helper.make_node("Mul", ["x", "two"], ["middle"]), helper.make_node("Relu", ["middle"], ["y"])]
    graph = helper.make_graph(nodes, "doubling", [names[0]], [names[2]], [two], value_info=[names[1]])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize("side", [64, 640, 70000])
def test_a_graph_of_fixed_size_runs_at_any_size(side: int) -> None:
    freed = with_free_dimensions(doubling(side), frozenset({side}))
    session = onnxruntime.InferenceSession(freed, providers=["CPUExecutionProvider"])
    picture = np.ones((1, 3, 32, 96), np.float32)
    assert np.array_equal(session.run(None, {"x": picture})[0], picture * 2)


def test_only_the_sizes_named_are_freed_and_nothing_else_changes() -> None:
    before = onnx.load_from_string(doubling(640))
    after = onnx.load_from_string(with_free_dimensions(doubling(640), frozenset({640})))
    dims = after.graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == [1, 3, "d640", "d640"]
    assert not after.graph.value_info
    assert list(after.graph.node) == list(before.graph.node)
    assert list(after.graph.initializer) == list(before.graph.initializer)
    assert after.opset_import == before.opset_import


def test_a_graph_without_such_sizes_keeps_its_declarations() -> None:
    model = tiny_graph()
    after = onnx.load_from_string(with_free_dimensions(model.SerializeToString(), frozenset({640})))
    assert after == model


@given(st.binary(min_size=1, max_size=200))
def test_bytes_that_are_no_model_are_refused_or_returned_whole(junk: bytes) -> None:
    try:
        freed = with_free_dimensions(junk, frozenset({640}))
    except NotOnnx:
        return
    assert isinstance(freed, bytes)


def test_a_truncated_model_is_refused() -> None:
    with pytest.raises(NotOnnx):
        with_free_dimensions(doubling(640)[:-3], frozenset({640}))


def test_the_published_yunet_loses_every_fixed_size() -> None:
    path = folder_from_environment("MIEN_MODELS_DIR") / "face_detection_yunet_2023mar.onnx"
    model = onnx.load_from_string(with_free_dimensions(path.read_bytes(), frozenset({640, 6400, 1600, 400})))
    onnx.checker.check_model(model)
    sizes = {
        dim.dim_value for value in [*model.graph.input, *model.graph.output] for dim in value.type.tensor_type.shape.dim
    }
    assert sizes <= {0, 1, 3, 4, 10}
