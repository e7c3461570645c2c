"""Swin transformers: windowed attention on a grid that is halved at each stage.

Options are passed to timm's SwinTransformer (`patch_size`, `embed_dim`, `depths`, `num_heads`, `window_size`, ...).
There is no distillation token: a teacher trains the class head, with mode `soft` or `hard`.
Source: Liu et al. 2021.
"""

from typing import cast

from torch import Tensor, nn

from models.backbones import BackboneConfig, Heads
from models.backbones._timm import create_timm


class Swin(nn.Module):
    """A timm Swin transformer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Heads:  # (B, C, P, P)
        return Heads(cast(Tensor, self.network(pixels)))  # (B, classes)


def create(config: BackboneConfig) -> nn.Module:
    """Build a timm Swin at `config.img_size`; timm pads grids that windows do not divide."""
    return Swin(create_timm(config, img_size=config.img_size, **config.options))
