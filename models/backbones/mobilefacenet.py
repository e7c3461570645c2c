"""MobileFaceNet, a face recognition network, with a new head, or as the stem of a distilled vision transformer.

Models: `mobilefacenet` (1.0 M parameters), and timm's vision transformers by name, whose patches are then the features
of MobileFaceNet's last map, 7x7. Options: `weights` (path of the published file; default: $MIEN_MOBILEFACENET),
`frozen` (number of the first blocks that are not trained), and those of the transformer, such as `depth`. With
`pretrained`, the convolutions start from the published file; its 128-dimensional embedding is left out.

Expects pixels (x - 0.5) / 0.5, normalization `fixed`, and converts them to the constants of the published weights.
Source: Chen et al. 2018, table 1, with ReLU6; github.com/foamliu/MobileFaceNet.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, cast

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops import Conv2dNormActivation

from mien.models.backbones import BackboneConfig, PretrainedWeightsUnavailable, UnknownBackbone
from mien.models.backbones._timm import create_timm
from mien.models.backbones.deit import PatchGrid
from mien.models.manifest import difference

NAME: Final = "mobilefacenet"
IMG_SIZE: Final = 112
FILE_NAME: Final = "mobilefacenet.pt"
FILE_SHA256: Final = "90a00ba1d8b0b688af3deb731ed53dca582e6106805d1bc3cfdef55f570493f4"
PATH_VARIABLE: Final = "MIEN_MOBILEFACENET"
PUBLISHED_TERMS: Final = (
    "MobileFaceNet (github.com/foamliu/MobileFaceNet, weights/mobilefacenet.pt), Apache-2.0; learned from 3.8 million "
    "photos of 85,164 people in MS-Celeb-1M, which Microsoft withdrew in 2019 because these people had not been asked; "
    "the license covers the file, not their photos"
)
_WIDTH: Final = 512  # channels of the last map
_STRIDE: Final = 16
# expansion, channels, blocks, stride of the first block
_STAGES: Final = ((2, 64, 5, 2), (4, 128, 1, 2), (2, 128, 6, 1), (4, 128, 1, 2), (2, 128, 2, 1))
_HOW_TO_GET: Final = (
    f"Download weights/{FILE_NAME} from github.com/foamliu/MobileFaceNet and set {PATH_VARIABLE} to its path"
)
_NEW: Final = ("head.", "projection.")
_OWN_NAMES: Final = {
    "dw_conv.depthwise": "dw_conv.0.0",
    "dw_conv.bn1": "dw_conv.0.1",
    "dw_conv.pointwise": "dw_conv.1.0",
    "dw_conv.bn2": "dw_conv.1.1",
    "gdconv.depthwise": "gdconv.0",
    "gdconv.bn": "gdconv.1",
}


class StridedConv2d(nn.Conv2d):
    """A convolution in fp32: in bf16 on CPUs, the backward pass of strided depthwise ones takes ten times as long."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
            return super().forward(x)
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


class Convolutions(nn.Module):
    """The network up to its last map, (B, 512, 7, 7)."""

    mean: Tensor
    std: Tensor

    def __init__(self, *, frozen: int = 0) -> None:
        super().__init__()
        # of pixels in -1 to 1
        mean, std = torch.tensor(IMAGENET_DEFAULT_MEAN) * 2 - 1, torch.tensor(IMAGENET_DEFAULT_STD) * 2
        self.register_buffer("mean", mean.view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", std.view(1, 3, 1, 1), persistent=False)
        self.conv1 = Conv2dNormActivation(3, 64, stride=2, activation_layer=nn.ReLU6)
        self.dw_conv = nn.Sequential(
            Conv2dNormActivation(64, 64, groups=64), Conv2dNormActivation(64, 64, kernel_size=1)
        )
        blocks: list[nn.Module] = []
        width_in = 64
        for expansion, width, count, stride in _STAGES:
            for number in range(count):
                block: Any = InvertedResidual(width_in, width, 1 if number else stride, expansion)
                if number == 0 and stride == 2:
                    block.conv[1][0].__class__ = StridedConv2d
                blocks.append(block)
                width_in = width
        self.features = nn.Sequential(*blocks)
        self.conv2 = Conv2dNormActivation(width_in, _WIDTH, kernel_size=1, activation_layer=nn.ReLU6)
        self.frozen = [self.conv1, self.dw_conv, *blocks[:frozen]] if frozen else []
        for module in self.frozen:
            module.requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Keep the statistics of frozen layers."""
        super().train(mode)
        for module in self.frozen:
            module.eval()
        return self

    def forward_features(self, pixels: Tensor) -> Tensor:  # (B, 1 or 3, 112, 112)
        """The last map, (B, 512, 7, 7)."""
        return cast(Tensor, self.conv2(self.features(self.dw_conv(self.conv1((pixels - self.mean) / self.std)))))

    def load_published(self, path: Path | str | None) -> None:
        """Load the published weights of the layers that this network has. Raises: PretrainedWeightsUnavailable."""
        own, weights = self.state_dict(), {}
        for name, tensor in published_weights(path).items():
            module, _, kind = name.rpartition(".")
            weights[f"{_OWN_NAMES.get(module, module)}.{kind}"] = tensor
        fresh = {name: tensor for name, tensor in own.items() if name.startswith(_NEW)}
        self.load_state_dict({name: weights[name] for name in own.keys() - fresh.keys()} | fresh)


class MobileFaceNet(Convolutions):
    """The convolutions, a depthwise convolution over the whole last map, dropout and a linear head."""

    def __init__(self, config: BackboneConfig, num_classes: int, *, frozen: int = 0) -> None:
        super().__init__(frozen=frozen)
        self.gdconv = nn.Sequential(nn.Conv2d(_WIDTH, _WIDTH, 7, groups=_WIDTH, bias=False), nn.BatchNorm2d(_WIDTH))
        self.drop = nn.Dropout(config.drop_rate)
        self.head = nn.Linear(_WIDTH, num_classes)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Names by layer, from the input to the last map, for `optim.layer_decay`; part of timm's interface."""
        return {"stem": r"^conv1|^dw_conv", "blocks": [(r"^features\.(\d+)", None), (r"^conv2|^gdconv", (99,))]}

    def forward_head(self, features: Tensor) -> Tensor:  # (B, 512, 7, 7)
        """Logits, (B, classes)."""
        return cast(Tensor, self.head(self.drop(self.gdconv(features).flatten(1))))


class Stem(PatchGrid, Convolutions):
    """Patch embedding of a vision transformer by the convolutions; replaces timm's PatchEmbed."""

    def __init__(
        self, img_size: int, patch_size: int, in_chans: int, embed_dim: int, *, frozen: int = 0, **_unused: Any
    ) -> None:
        super().__init__(frozen=frozen)
        self.set_grid(img_size, patch_size)
        self.projection = nn.Conv2d(_WIDTH, embed_dim, 1)

    def forward(self, pixels: Tensor) -> Tensor:  # (B, 1 or 3, 112, 112)
        tokens = cast(Tensor, self.projection(self.forward_features(pixels)))
        return tokens.flatten(2).transpose(1, 2)  # (B, 49, embed_dim)


def published_weights(path: Path | str | None = None) -> dict[str, Tensor]:
    """Published state dict at `path` or $MIEN_MOBILEFACENET.

    Raises: PretrainedWeightsUnavailable, for a missing or different file.
    """
    path = path or os.environ.get(PATH_VARIABLE)
    if not path:
        raise PretrainedWeightsUnavailable(f"{FILE_NAME}: not found. {_HOW_TO_GET}.")
    if found := difference(Path(path), FILE_SHA256):
        raise PretrainedWeightsUnavailable(f"{found}. {_HOW_TO_GET}.")
    weights: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return weights


def create(config: BackboneConfig, num_classes: int) -> nn.Module:
    """Build a network, with the published weights if `config.pretrained` is set.

    Raises: UnknownBackbone for another name, size or option; PretrainedWeightsUnavailable, without the file.
    """
    options = dict(config.options)
    weights, frozen = options.pop("weights", None), int(options.pop("frozen", 0))
    if config.img_size != IMG_SIZE:
        raise UnknownBackbone(f"{config.name}: img_size {config.img_size}, the published weights require {IMG_SIZE}")
    if config.name == NAME:
        if config.drop_path_rate:
            raise UnknownBackbone(f"{NAME} has no stochastic depth: remove model.drop_path_rate")
        if options:
            raise UnknownBackbone(f"{NAME} takes weights and frozen; found {', '.join(options)}")
        network: nn.Module = MobileFaceNet(config, num_classes, frozen=frozen)
    else:
        embed = {"img_size": IMG_SIZE, "patch_size": _STRIDE, "embed_layer": partial(Stem, frozen=frozen)}
        untrained = config.model_copy(update={"pretrained": False})
        network = create_timm(untrained, num_classes, **embed, **options)
    if config.pretrained:
        convolutions: Any = network if config.name == NAME else network.patch_embed
        convolutions.load_published(weights)
    return network
