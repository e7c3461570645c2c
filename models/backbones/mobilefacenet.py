"""MobileFaceNet, a face recognition network of 1.0 M parameters, with a new head.

Options: `weights` (path of the published file; default: $MIEN_MOBILEFACENET) and `frozen` (number of the first blocks
that are not trained). With `pretrained`, the convolutions start from the published file; its 128-dimensional embedding
is left out.

Expects pixels (x - 0.5) / 0.5, normalization `fixed`, and converts them to the constants of the published weights.
Source: Chen et al. 2018, table 1, with ReLU6; github.com/foamliu/MobileFaceNet.
"""

import os
from pathlib import Path
from typing import Any, Final, Self, cast

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops import Conv2dNormActivation

from mien.models.backbones import BackboneConfig, PretrainedWeightsUnavailable, UnknownBackbone
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
# expansion, channels, blocks, stride of the first block
_STAGES: Final = ((2, 64, 5, 2), (4, 128, 1, 2), (2, 128, 6, 1), (4, 128, 1, 2), (2, 128, 2, 1))
_HOW_TO_GET: Final = (
    f"Download weights/{FILE_NAME} from github.com/foamliu/MobileFaceNet and set {PATH_VARIABLE} to its path"
)
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


class MobileFaceNet(nn.Module):
    """Convolutions to a map of 7x7, a depthwise convolution over the whole map, dropout and a linear head."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: BackboneConfig, num_classes: int, *, frozen: int) -> None:
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
        self.gdconv = nn.Sequential(nn.Conv2d(_WIDTH, _WIDTH, 7, groups=_WIDTH, bias=False), nn.BatchNorm2d(_WIDTH))
        self.drop = nn.Dropout(config.drop_rate)
        self.head = nn.Linear(_WIDTH, num_classes)
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

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Names by layer, from the input to the last map, for `optim.layer_decay`; part of timm's interface."""
        return {"stem": r"^conv1|^dw_conv", "blocks": [(r"^features\.(\d+)", None), (r"^conv2|^gdconv", (99,))]}

    def forward_head(self, features: Tensor) -> Tensor:  # (B, 512, 7, 7)
        """Logits, (B, classes)."""
        return cast(Tensor, self.head(self.drop(self.gdconv(features).flatten(1))))

    def load_published(self, path: Path | str | None) -> None:
        """Load the published weights of all layers but the head, from `path` or $MIEN_MOBILEFACENET.

        Raises: PretrainedWeightsUnavailable, for a missing or different file.
        """
        path = path or os.environ.get(PATH_VARIABLE)
        if not path:
            raise PretrainedWeightsUnavailable(f"{FILE_NAME}: not found. {_HOW_TO_GET}.")
        if found := difference(Path(path), FILE_SHA256):
            raise PretrainedWeightsUnavailable(f"{found}. {_HOW_TO_GET}.")
        weights = {}
        for name, tensor in torch.load(path, map_location="cpu", weights_only=True).items():
            module, _, kind = name.rpartition(".")
            weights[f"{_OWN_NAMES.get(module, module)}.{kind}"] = tensor
        own = self.state_dict()
        self.load_state_dict({name: own[name] if name.startswith("head.") else weights[name] for name in own})


def create(config: BackboneConfig, num_classes: int) -> nn.Module:
    """Build a network, with the published weights if `config.pretrained` is set.

    Raises: UnknownBackbone for another name, size or option; PretrainedWeightsUnavailable, without the file.
    """
    options = dict(config.options)
    weights, frozen = options.pop("weights", None), int(options.pop("frozen", 0))
    if (config.name, config.img_size, config.drop_path_rate, options) != (NAME, IMG_SIZE, 0.0, {}):
        raise UnknownBackbone(
            f"family {NAME}: expected name {NAME}, img_size {IMG_SIZE}, no drop_path_rate, and options weights and "
            f"frozen; found {config.name}, {config.img_size}, {config.drop_path_rate}, {', '.join(options) or 'none'}"
        )
    network = MobileFaceNet(config, num_classes, frozen=frozen)
    if config.pretrained:
        network.load_published(weights)
    return network
