"""Backbones over timm, one file per family; `model.family` of a recipe is the file name.

A family module has `create(config: BackboneConfig) -> nn.Module` whose result maps normalized pixels
(B, C, P, P) float32 to `Heads`. To add a family, add a file to this folder.
"""

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from mien.data.errors import MienError


class Heads(NamedTuple):
    """Logits of a model's heads, (B, classes); a model without a distillation token has one head."""

    class_logits: Tensor
    distillation_logits: Tensor | None = None
    class_maps: Tensor | None = None  # (B, classes, H, W), class activation maps of convolutional networks


class UnknownBackbone(MienError, ValueError):
    """An unknown family or timm model, or invalid options."""


class PretrainedWeightsUnavailable(MienError):
    """Pretrained weights cannot be loaded, and the recipe does not allow random weights."""


@dataclass(frozen=True, slots=True)
class BackboneConfig:
    """Configuration of a network."""

    name: str  # timm's name
    num_classes: int
    in_chans: int  # 1 luminance, 3 RGB
    img_size: int  # side of the square input, pixels
    drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    pretrained: bool = False
    scratch_if_unavailable: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def families() -> list[str]:
    """Names of the families: the files of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def published_terms(family: str) -> str:
    """Terms of a family's published weights, for the card of a model that starts from them."""
    module = importlib.import_module(f"{__name__}.{family}")
    return getattr(module, "PUBLISHED_TERMS", "published weights, under the terms of their publisher")


def class_activation_maps(features: Tensor, classifier: nn.Linear) -> Tensor:
    """Contribution of each position to each logit: (B, C, H, W) features to (B, classes, H, W), float32.

    Without dropout, their mean over the positions is the logit without its bias. Source: Zhou et al. 2016, eq. 2.
    """
    return torch.einsum("bchw,kc->bkhw", features.float(), classifier.weight.float())


def create_backbone(family: str, config: BackboneConfig) -> nn.Module:
    """Build a network of one family. Raises: UnknownBackbone, listing the families."""
    if family not in families():
        raise UnknownBackbone(f"backbone family {family!r}: expected one of {', '.join(families())}")
    return cast(nn.Module, importlib.import_module(f"{__name__}.{family}").create(config))
