"""Convolutional networks, used as teachers: any timm CNN by name (ResNet, RegNetY, ConvNeXt, ...)."""

from torch import nn

from mien.models.backbones import BackboneConfig, UnknownBackbone, create_timm


def create(config: BackboneConfig, num_classes: int) -> nn.Module:
    """Build a timm CNN with one head; `options` are passed to timm. Raises: UnknownBackbone."""
    network = create_timm(config, num_classes, **config.options)
    if hasattr(network, "patch_embed"):
        raise UnknownBackbone(f"{config.name} is a transformer: use model.family=deit")
    return network
