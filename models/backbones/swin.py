"""Swin transformers: windowed attention on a grid that is halved at each stage.

Options are passed to timm's SwinTransformer (`patch_size`, `embed_dim`, `depths`, `num_heads`, `window_size`, ...).
There is no distillation token: a teacher trains the class head, with mode `soft` or `hard`.
Source: Liu et al. 2021.
"""

from torch import nn

from mien.models.backbones import BackboneConfig
from mien.models.backbones._timm import OneHead, create_timm


def create(config: BackboneConfig, num_classes: int) -> nn.Module:
    """Build a timm Swin at `config.img_size`; timm pads grids that windows do not divide."""
    return OneHead(create_timm(config, num_classes, img_size=config.img_size, **config.options))
