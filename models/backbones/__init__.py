"""Backbones over timm: one file per family, found by its name; a recipe's `model.family` names the file.

A family module has `create(config: BackboneConfig) -> nn.Module` whose result maps normalised pixels
(B, C, P, P) float32 to `Heads`. Adding a family is adding a file here.
"""

import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from torch import Tensor, nn


class Heads(NamedTuple):
    """Logits of a model's heads, (B, classes); a model without a distillation token has one head."""

    class_logits: Tensor
    distillation_logits: Tensor | None = None


class UnknownBackbone(ValueError):
    """A family or a timm name that does not exist, or options that it does not take."""


class PretrainedWeightsUnavailable(RuntimeError):
    """The hub that holds pretrained weights did not answer, and the recipe does not allow training from scratch."""


@dataclass(frozen=True, slots=True)
class BackboneConfig:
    """What a family needs to build a network."""

    name: str  # timm's name
    classes: int
    channels: int  # 1 luminance, 3 RGB
    input_px: int  # side of the square the network sees
    drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    pretrained: bool = False
    scratch_if_unavailable: bool = False
    options: dict[str, Any] = field(default_factory=dict)


def families() -> list[str]:
    """Names of the families, one per file of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def create_backbone(family: str, config: BackboneConfig) -> nn.Module:
    """Build a network of one family. Raises: UnknownBackbone, naming the families there are."""
    if family not in families():
        raise UnknownBackbone(f"backbone family {family!r}: expected one of {', '.join(families())}")
    return cast(nn.Module, importlib.import_module(f"{__name__}.{family}").create(config))
