"""Swin transformers: attention within windows over a grid that halves from stage to stage; locality without a stem.

Options go to timm's SwinTransformer as they are (`patch_size`, `embed_dim`, `depths`, `num_heads`, `window_size`, ...).
There is no distillation token: a teacher is heard by the class head, with mode `soft` or `hard`.
Source: Liu et al. 2021.
"""

from torch import nn

from models.backbones import BackboneConfig
from models.backbones._timm import OneHead, create_timm


def create(config: BackboneConfig) -> nn.Module:
    """Build a timm Swin at `config.input_px`; a stage whose grid is not whole windows is padded, as timm does."""
    return OneHead(create_timm(config, img_size=config.input_px, **config.options))
