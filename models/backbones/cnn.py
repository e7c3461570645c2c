"""Convolutional networks: the teachers. Any timm CNN by its name (ResNet, RegNetY, ConvNeXt, ...)."""

from typing import cast

from torch import Tensor, nn

from models.backbones import BackboneConfig, Heads
from models.backbones._timm import create_timm


class _OneHead(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Heads:  # (B, C, P, P)
        return Heads(cast(Tensor, self.network(pixels)))  # (B, classes)


def create(config: BackboneConfig) -> nn.Module:
    """Build a timm CNN with one head; `options` go to timm as they are."""
    return _OneHead(create_timm(config, **config.options))
