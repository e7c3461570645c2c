"""Graphs of a release: the probabilities of a mean of several networks."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mien.data.contract import Array, softmax
from mien.training.release.graphs import ReleasedEnsemble
from tests.support import random_crops


class Linear(nn.Module):
    """A network with seven logits, linear in the mean color of the left and right half of a crop."""

    explains = False

    def __init__(self, seed: int) -> None:
        super().__init__()
        weight = np.random.default_rng(seed).normal(0, 3, (6, 7)).astype(np.float32)
        self.weight = nn.Parameter(torch.from_numpy(weight), requires_grad=False)

    def forward(self, crops: Tensor) -> tuple[Tensor, ...]:
        halves = crops.float().unflatten(2, (2, -1)).mean(dim=(1, 3)).flatten(1) / 255  # (N, 6)
        return (halves @ self.weight,)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_mean_of_networks_averages_the_probabilities_at_each_ones_temperature(mirrored: bool) -> None:
    members, temperatures = [Linear(1), Linear(2)], [2.0, 0.5]
    crops = torch.from_numpy(random_crops(12))
    (logits,) = ReleasedEnsemble(members, temperatures, mirrored=mirrored)(crops)  # type: ignore[arg-type]

    def mean(views: Tensor) -> Array:
        parts = [softmax(member(views)[0].numpy(), t) for member, t in zip(members, temperatures, strict=True)]
        assert np.abs(parts[0] - parts[1]).max() > 0.2
        return np.asarray(np.mean(parts, axis=0))

    expected = (mean(crops) + mean(crops.flip(2))) / 2 if mirrored else mean(crops)
    assert softmax(logits.numpy()) == pytest.approx(expected, abs=1e-5)
