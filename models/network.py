"""Face classifier from uint8 crops to logits: preprocessing, backbone and heads.

Normalization is part of the module and thus of the exported graph.
"""

from typing import Any, Final, Literal, Self

import torch
from timm.data.constants import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor, nn
from torch.nn import functional

from mien.data.contract import CROP_PX, LABELS
from mien.models.backbones import BackboneConfig, Color, Heads, Normalization, UnknownBackbone, create_backbone

Head = Literal["class", "distillation", "mean"]

# ITU-R BT.601, as in cv2.COLOR_RGB2GRAY and in the grayscale images of FER2013
LUMINANCE_WEIGHTS: Final = (0.299, 0.587, 0.114)


class Preprocess(nn.Module):
    """uint8 crops (B, 112, 112, 3) RGB, or (B, 112, 112, 1) luminance, to normalized float32 (B, C, P, P)."""

    luminance: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, *, color: Color, normalization: Normalization, img_size: int) -> None:
        super().__init__()
        if normalization == "imagenet" and color != "RGB":
            raise UnknownBackbone("model.normalization imagenet requires color RGB: its statistics are per channel")
        self.color, self.normalization, self.img_size = color, normalization, img_size
        self.register_buffer("luminance", torch.tensor(LUMINANCE_WEIGHTS), persistent=False)
        self.register_buffer("mean", torch.tensor(IMAGENET_DEFAULT_MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(IMAGENET_DEFAULT_STD).view(1, 3, 1, 1), persistent=False)

    def forward(self, crops: Tensor) -> Tensor:
        pixels = crops.to(torch.float32) / 255.0
        if self.color == "luminance" and pixels.shape[-1] == 3:
            pixels = (pixels * self.luminance).sum(dim=-1, keepdim=True)
        elif self.color == "RGB" and pixels.shape[-1] == 1:  # of a student on luminance
            pixels = pixels.expand(-1, -1, -1, 3)
        pixels, size = pixels.permute(0, 3, 1, 2), (self.img_size, self.img_size)
        if self.img_size < CROP_PX and CROP_PX % self.img_size == 0:
            pixels = functional.avg_pool2d(pixels, CROP_PX // self.img_size)
        elif self.img_size != CROP_PX:
            smaller = self.img_size < CROP_PX
            pixels = functional.interpolate(pixels, size, mode="bilinear", antialias=smaller, align_corners=False)
        return self.normalize(pixels)

    def normalize(self, pixels: Tensor) -> Tensor:
        """Resized pixels from 0 to 1 (B, C, P, P) as the backbone expects them."""
        if self.normalization == "imagenet":
            return (pixels - self.mean) / self.std
        if self.normalization == "fixed":
            return (pixels - 0.5) / 0.5
        centered = pixels - pixels.mean(dim=(1, 2, 3), keepdim=True)
        # the constant avoids amplifying the noise of flat images
        return centered / (centered.square().mean(dim=(1, 2, 3), keepdim=True).sqrt() + 0.02)


class FaceNetwork(nn.Module):
    """Preprocessing and a backbone, which is timm's module: uint8 crops in, `Heads` out, with a logit per class."""

    def __init__(self, config: BackboneConfig, num_classes: int = len(LABELS)) -> None:
        super().__init__()
        self.preprocess = Preprocess(color=config.color, normalization=config.normalization, img_size=config.img_size)
        self.backbone = create_backbone(config, num_classes)
        self.frozen = config.frozen
        if self.frozen:
            self.requires_grad_(False)
            for head in self.heads().values():
                head.requires_grad_(True)

    @property
    def distilled(self) -> bool:
        """Whether it has a distillation token with its own head."""
        return hasattr(self.backbone, "head_dist")

    def heads(self) -> dict[str, nn.Module]:
        """The linear layers that compute the logits, by their names."""
        backbone: Any = self.backbone
        classifiers = backbone.get_classifier() if hasattr(backbone, "get_classifier") else backbone.head
        heads = set(classifiers if isinstance(classifiers, tuple) else (classifiers,))
        return {name: module for name, module in self.named_modules() if module in heads}

    def train(self, mode: bool = True) -> Self:
        """Keep the statistics of a frozen network, and apply no dropout."""
        return super().train(mode and not self.frozen)

    def forward(self, crops: Tensor) -> Heads:
        with torch.autocast(crops.device.type, enabled=False):
            pixels = self.preprocess(crops)
        return heads_of(self.backbone, pixels.contiguous(memory_format=torch.channels_last))


def heads_of(backbone: Any, pixels: Tensor) -> Heads:
    """Logits of the heads of a backbone for normalized pixels, (B, C, P, P)."""
    features = backbone.forward_features(pixels)
    if hasattr(backbone, "head_dist"):  # timm's own forward pass leaves out the dropout, and averages the heads
        drop = backbone.head_drop
        return Heads(backbone.head(drop(features[:, 0])), backbone.head_dist(drop(features[:, 1])))
    return Heads(backbone.forward_head(features))


def select_head(heads: Heads, head: Head) -> Tensor:
    """Logits of one head, or the log of the mean of both heads' probabilities.

    The paper adds the two softmaxes (Touvron et al. 2021, section 4); DeiT's code and timm average logits instead.

    Returns: (B, classes) float32.
    Raises: UnknownBackbone, if the model has no distillation head.
    """
    if head == "class":
        return heads.class_logits.float()
    if heads.distillation_logits is None:
        raise UnknownBackbone(
            f"head {head!r}: this model has no distillation token. Choose one of timm's *_distilled_* models, or "
            "distillation.mode soft or hard."
        )
    if head == "distillation":
        return heads.distillation_logits.float()
    both = torch.stack([heads.class_logits.float(), heads.distillation_logits.float()])
    return torch.log_softmax(both, dim=-1).exp().mean(dim=0).clamp_min(1e-12).log()
