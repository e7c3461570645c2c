"""Weights of a graph that are stored in half precision."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from mien.data.contract import softmax
from mien.models.network import FaceNetwork
from mien.training.evaluate import open_graph, run_graph
from mien.training.quantize import weighted_nodes
from mien.training.release.graphs import ReleasedNetwork, store_weights_in_half, with_fp32_weights, write_graph
from mien.training.release.weights import round_weights
from tests.support_models import crops
from tests.support_training import TINY_DEIT, small_recipe


def test_a_graph_with_weights_in_half_precision_is_half_as_large_and_has_the_same_output(tmp_path: Path) -> None:
    torch.manual_seed(0)
    full = tmp_path / "full.onnx"
    network = FaceNetwork(small_recipe(tmp_path, model=TINY_DEIT).model)
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, -2, 2)
        nn.init.uniform_(norm.running_var, 0.1, 3)
    round_weights(network)
    write_graph(ReleasedNetwork(network, "class"), full)
    stored = Path(shutil.copy(full, tmp_path / "model.onnx"))
    store_weights_in_half(stored)
    assert stored.stat().st_size < 0.6 * full.stat().st_size
    faces = crops(4, channels=3).numpy()
    expected, found = (softmax(run_graph(open_graph(path), faces)) for path in (full, stored))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert weighted_nodes(with_fp32_weights(onnx.load(str(stored)))) == weighted_nodes(onnx.load(str(full)))
