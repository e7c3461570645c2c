"""Convolutional networks, used as teachers: any timm CNN by name (ResNet, RegNetY, ConvNeXt, ...)."""

from typing import Any

from torch import Tensor, nn

from mien.models.backbones import BackboneConfig, Heads, UnknownBackbone, class_activation_maps
from mien.models.backbones._timm import create_timm


class ConvNet(nn.Module):
    """A timm CNN; it has class activation maps if its classifier is linear in the channels of its last feature map."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, pixels: Tensor) -> Heads:  # (B, C, P, P)
        features = self.network.forward_features(pixels)  # (B, C, H, W)
        classifier = self.network.get_classifier()
        fits = isinstance(classifier, nn.Linear) and classifier.in_features == features.shape[1]
        maps = class_activation_maps(features, classifier) if fits else None
        return Heads(self.network.forward_head(features), class_maps=maps)


def create(config: BackboneConfig, num_classes: int) -> nn.Module:
    """Build a timm CNN with one head; `options` are passed to timm. Raises: UnknownBackbone."""
    network = create_timm(config, num_classes, **config.options)
    if hasattr(network, "patch_embed"):
        raise UnknownBackbone(f"{config.name} is a transformer: use model.family=deit or swin")
    return ConvNet(network)
