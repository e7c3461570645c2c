"""Convolutional networks, used as teachers: any timm CNN by name (ResNet, RegNetY, ConvNeXt, ...)."""

from torch import nn

from models.backbones import BackboneConfig
from models.backbones._timm import OneHead, create_timm


def create(config: BackboneConfig) -> nn.Module:
    """Build a timm CNN with one head; `options` are passed to timm."""
    return OneHead(create_timm(config, **config.options))
