"""A face classifier from uint8 crop to logits: everything between the contract's crop and the heads, in one module.

Normalisation lives here and so in the exported graph; nobody else normalises.
"""

from typing import Final, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from data.contract import CROP_PX
from models.backbones import BackboneConfig, Heads, create_backbone

Colour = Literal["luminance", "RGB"]
Normalisation = Literal["per_image", "imagenet"]
Head = Literal["class", "distillation", "mean"]

# ITU-R BT.601, as cv2.COLOR_RGB2GRAY and as FER2013's gray pictures were made
LUMINANCE_WEIGHTS: Final = (0.299, 0.587, 0.114)
_IMAGENET_MEAN: Final = (0.485, 0.456, 0.406)
_IMAGENET_STD: Final = (0.229, 0.224, 0.225)


class Preprocess(nn.Module):
    """uint8 crops (B, 112, 112, 3) RGB, or (B, 112, 112, 1) luminance, to normalised float32 (B, C, P, P)."""

    luminance: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, *, colour: Colour, normalisation: Normalisation, input_px: int) -> None:
        super().__init__()
        if normalisation == "imagenet" and colour != "RGB":
            raise ValueError("normalisation imagenet needs colour RGB: its statistics are per colour channel")
        self.colour, self.normalisation, self.input_px = colour, normalisation, input_px
        self.register_buffer("luminance", torch.tensor(LUMINANCE_WEIGHTS), persistent=False)
        self.register_buffer("mean", torch.tensor(_IMAGENET_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(_IMAGENET_STD).view(1, 3, 1, 1), persistent=False)

    def forward(self, crops: Tensor) -> Tensor:
        pixels = crops.to(torch.float32) / 255.0
        if self.colour == "luminance" and pixels.shape[-1] == 3:
            pixels = (pixels * self.luminance).sum(dim=-1, keepdim=True)
        pixels = self._resize(pixels.permute(0, 3, 1, 2))
        if self.normalisation == "imagenet":
            return (pixels - self.mean) / self.std
        centred = pixels - pixels.mean(dim=(1, 2, 3), keepdim=True)
        # the floor keeps a flat picture flat instead of enlarging its noise
        return centred / (centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt() + 0.02)

    def _resize(self, pixels: Tensor) -> Tensor:
        if self.input_px == CROP_PX:
            return pixels
        if CROP_PX % self.input_px == 0:
            return functional.avg_pool2d(pixels, CROP_PX // self.input_px)
        size = (self.input_px, self.input_px)
        return functional.interpolate(pixels, size=size, mode="bilinear", antialias=True, align_corners=False)


class FaceNetwork(nn.Module):
    """Preprocessing and a backbone: uint8 crops in, `Heads` out."""

    def __init__(
        self, family: str, config: BackboneConfig, *, colour: Colour, normalisation: Normalisation = "per_image"
    ) -> None:
        super().__init__()
        self.preprocess = Preprocess(colour=colour, normalisation=normalisation, input_px=config.input_px)
        self.backbone = create_backbone(family, config)

    def forward(self, crops: Tensor) -> Heads:
        with torch.autocast(crops.device.type, enabled=False):
            pixels = self.preprocess(crops)
        heads: Heads = self.backbone(pixels.contiguous(memory_format=torch.channels_last))
        return heads


def select_head(heads: Heads, head: Head) -> Tensor:
    """Logits of one head, or the mean of both heads' probabilities as logits (DeiT averages the two softmaxes).

    Returns: (B, classes) float32.
    Raises: ValueError, for a distillation head that the model does not have.
    """
    if head == "class":
        return heads.class_logits.float()
    if heads.distillation_logits is None:
        raise ValueError(f"head {head!r}: this model has no distillation token, only the class head")
    if head == "distillation":
        return heads.distillation_logits.float()
    both = torch.stack([heads.class_logits.float(), heads.distillation_logits.float()])
    return torch.log_softmax(both, dim=-1).exp().mean(dim=0).clamp_min(1e-12).log()
