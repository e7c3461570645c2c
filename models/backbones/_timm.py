"""Wrapper of timm's `create_model` with actionable errors."""

import logging
from pickle import UnpicklingError
from typing import Any, Final, cast

import timm
from safetensors import SafetensorError
from torch import nn

from mien.models.backbones import BackboneConfig, PretrainedWeightsUnavailable, UnknownBackbone

logger = logging.getLogger(__name__)
# of a hub that is not reachable, and of torch's unpickler for bytes that are not a pickle
_UNREADABLE: Final = (OSError, SafetensorError, UnpicklingError, RuntimeError, EOFError, LookupError, ValueError)


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
