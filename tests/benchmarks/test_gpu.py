"""The GPU benchmark: the operations of a graph, by which it states its use of the hardware, and a small run."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks import gpu
from mien.app.inference.classifier import Classifier
from mien.app.inference.runtime import sessions
from mien.app.settings import Settings


def test_operations_of_a_graph_equal_a_manual_count(tmp_path: Path) -> None:
    def tensor(name: str, *shape: int) -> onnx.TensorProto:
        return helper.make_tensor(name, TensorProto.FLOAT, shape, np.zeros(shape).ravel())

    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["grid"], group=2, strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Flatten", ["grid"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], ["hidden"]),
        helper.make_node("Gemm", ["hidden", "head"], ["y"], transB=1),
    ]
    weights = [tensor("kernel", 6, 2, 3, 3), tensor("weight", 96, 10), tensor("head", 7, 10)]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["faces", 4, 8, 8])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["faces", 7])
    model = helper.make_model(
        helper.make_graph(nodes, "known", [given], [out], weights),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    onnx.save(model, tmp_path / "known.onnx")
    convolution, product, head = 2 * (6 * 4 * 4) * (2 * 3 * 3), 2 * 96 * 10, 2 * 10 * 7
    assert gpu.flop_per_face(tmp_path / "known.onnx") == convolution + product + head


def test_small_sizes_on_the_cpu(artifact: Path) -> None:
    classifier = Classifier(Settings(model=artifact, device="cpu", threads=1))
    found = gpu.measure(classifier, "cpu", batch=4, concurrency=2, matmul_size=32)
    assert (found["provider"], found["graph_sizes"]) == (sessions.CPU, ())
    for name in ("batching_gain", "faces_per_s", "ms_per_batch", "matmul_tflop_per_s", "sequential_faces_per_s"):
        assert 0 < found[name] < np.inf, name
