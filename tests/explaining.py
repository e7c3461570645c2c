"""Tiny artifact with an attention map: the mean brightness of each tile."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.manifest import GraphFile, Relevance, read_manifest, sha256_of, write_manifest
from tests.support import tiny_artifact, tiny_graph

GRID = 7


def explaining_graph(*, half: bool = False) -> onnx.ModelProto:
    """The tiny graph with a second output, `relevance` (N, 7, 7) float32, maps sum to 1."""
    model = tiny_graph(half=half)
    axes = {"planes": [1], "grid": [1, 2]}
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(value), f"{name}_axes") for name, value in axes.items()
    )
    model.graph.node.extend(
        [
            helper.make_node("Cast", ["tiles"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["wide"], ["brightness"], axes=[1], keepdims=0),
            helper.make_node("ReduceSum", ["brightness", "grid_axes"], ["total"], keepdims=1),
            helper.make_node("Div", ["brightness", "total"], ["relevance"]),
        ]
    )
    model.graph.output.append(helper.make_tensor_value_info("relevance", TensorProto.FLOAT, ["N", GRID, GRID]))
    onnx.checker.check_model(model)
    return model


def explaining_artifact(folder: Path) -> Path:
    """Write it into `folder`. Returns `folder`."""
    tiny_artifact(folder)
    manifest = read_manifest(folder)
    graphs = {}
    for precision, graph in manifest.graphs.items():
        path = folder / graph.file
        path.write_bytes(explaining_graph(half=precision == "fp16").SerializeToString())
        graphs[precision] = GraphFile(file=graph.file, sha256=sha256_of(path))
    changes = {"graphs": graphs, "explain": Relevance(shape=(-1, GRID, GRID))}
    write_manifest(folder, manifest.model_copy(update=changes))
    return folder
