"""Backbones over timm, one file per family; `model.family` of a recipe is the file name.

A family module has `create(config: BackboneConfig, num_classes: int) -> nn.Module`. The result has timm's interface:
`forward_features` of normalized pixels (B, C, P, P) float32, and `forward_head` of its result. To add a family, add a
file to this folder.
"""

import importlib
import logging
import pkgutil
from pickle import UnpicklingError
from typing import Any, Final, Literal, NamedTuple, Self, cast

import timm
from pydantic import Field, model_validator
from safetensors import SafetensorError
from torch import Tensor, nn

from mien.data.contract import LABELS
from mien.data.errors import MienError
from mien.models.strict import StrictModel

Color = Literal["luminance", "RGB"]
Normalization = Literal["per_image", "imagenet", "fixed"]
logger = logging.getLogger(__name__)
# of a hub that is not reachable, and of torch's unpickler for bytes that are not a pickle
_UNREADABLE: Final = (OSError, SafetensorError, UnpicklingError, RuntimeError, EOFError, LookupError, ValueError)


class Heads(NamedTuple):
    """Logits of a model's heads, (B, classes); a model without a distillation token has one head."""

    class_logits: Tensor
    distillation_logits: Tensor | None = None


class UnknownBackbone(MienError, ValueError):
    """An unknown family or timm model, or invalid options."""


class PretrainedWeightsUnavailable(MienError):
    """Pretrained weights cannot be loaded."""


class BackboneConfig(StrictModel):
    """Configuration of a network."""

    family: str = Field(description="file in models/backbones")
    name: str = Field(description="timm's name")
    color: Color = "luminance"
    normalization: Normalization = "per_image"
    img_size: int = Field(112, ge=16, le=224, description="side of the network's input; 112-pixel crops are resized")
    drop_rate: float = Field(0.0, ge=0, lt=1)
    drop_path_rate: float = Field(0.0, ge=0, lt=1)
    pretrained: bool = False
    frozen: bool = Field(False, description="train the heads only; all other weights and statistics stay")
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _options_contradict_no_key(self) -> Self:
        keys = {"num_classes": "options.classes of the data", "in_chans": "color", "img_size": "img_size"}
        for option, key in keys.items():
            if option in self.options:
                raise ValueError(f"options.{option}: set {key} instead")
        return self

    @property
    def in_chans(self) -> int:
        return 1 if self.color == "luminance" else 3


def families() -> list[str]:
    """Names of the families: the files of this folder."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def published_terms(family: str) -> str:
    """Terms of a family's published weights, for the card of a model that starts from them."""
    module = importlib.import_module(f"{__name__}.{family}")
    return getattr(module, "PUBLISHED_TERMS", "published weights, under the terms of their publisher")


def create_backbone(config: BackboneConfig, num_classes: int = len(LABELS)) -> nn.Module:
    """Build a network of one family. Raises: UnknownBackbone, listing the families."""
    if config.family not in families():
        raise UnknownBackbone(f"backbone family {config.family!r}: expected one of {', '.join(families())}")
    return cast(nn.Module, importlib.import_module(f"{__name__}.{config.family}").create(config, num_classes))


def create_timm(config: BackboneConfig, num_classes: int, **arguments: Any) -> nn.Module:
    """Build a timm model, with pretrained weights if the recipe requests them.

    Raises: UnknownBackbone, PretrainedWeightsUnavailable.
    """
    if not timm.is_model(config.name):
        similar = ", ".join(timm.list_models(f"*{config.name.split('_')[0]}*")[:6]) or "none"
        raise UnknownBackbone(f"timm has no model {config.name!r}; similar names: {similar}")
    common: dict[str, Any] = {
        "num_classes": num_classes,
        "in_chans": config.in_chans,
        "drop_rate": config.drop_rate,
        "drop_path_rate": config.drop_path_rate or None,  # timm leaves None out; not all models take it
        **arguments,
    }
    if config.pretrained:
        try:
            network: Any = timm.create_model(config.name, pretrained=True, **common)
        except _UNREADABLE as error:
            raise PretrainedWeightsUnavailable(
                f"pretrained weights of {config.name} cannot be loaded ({type(error).__name__}: {error}). Connect to "
                "the model hub; or download the file elsewhere and set model.options.pretrained_cfg_overlay={file: "
                "FILE}; or train from random weights with model.pretrained=false."
            ) from error
        logger.info(
            "%s: using pretrained weights for %d px at %d px; position embeddings are resized",
            config.name, network.pretrained_cfg["input_size"][-1], config.img_size,
        )  # fmt: skip
        return cast(nn.Module, network)
    try:
        return timm.create_model(config.name, pretrained=False, **common)
    except (TypeError, ValueError, AssertionError, ZeroDivisionError) as error:
        raise UnknownBackbone(f"model {config.name} rejects these options: {error}") from error
