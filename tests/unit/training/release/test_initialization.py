"""Measured statistics of norms: the output is unchanged in evaluation, and the same in training."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mien.data.contract import CROP_PX
from mien.models.network import FaceNetwork
from mien.training.release.initialization import measure_norms
from tests.support_training import TINY_CNN, TINY_DEIT, small_recipe


def _logits(network: FaceNetwork, crops: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return network(crops).class_logits


@pytest.mark.parametrize("model", [TINY_CNN, TINY_DEIT | {"drop_path_rate": 0.0}], ids=["cnn", "hybrid"])
def test_measured_norms_keep_the_output_in_evaluation_and_training(model: dict[str, object]) -> None:
    torch.manual_seed(0)
    network = FaceNetwork(small_recipe(Path("faces"), model=model).model)
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.normal_(norm.bias, std=0.3)
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    crops = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (64, CROP_PX, CROP_PX, 1), dtype=np.uint8))
    before = _logits(network.eval(), crops)
    assert (_logits(copy.deepcopy(network).train(), crops) - before).abs().max() > 1e-2
    network.train()
    measure_norms(network, crops)
    assert network.training
    torch.testing.assert_close(_logits(network.eval(), crops), before, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(_logits(network.train(), crops), before, atol=5e-3, rtol=5e-3)
