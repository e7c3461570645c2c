"""Wrapper of timm's `create_model` with actionable errors."""

import logging
import queue
import threading
from pickle import UnpicklingError
from typing import Any, Final, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import timm
from huggingface_hub import constants, try_to_load_from_cache
from safetensors import SafetensorError
from torch import nn

from mien.models.backbones import BackboneConfig, PretrainedWeightsUnavailable, UnknownBackbone

logger = logging.getLogger(__name__)
_REACHABLE_S: Final = 10.0
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
            if "pretrained_cfg_overlay" not in common:
                common["pretrained_cfg_overlay"] = _cached_or_reachable(config.name)
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


def _cached_or_reachable(name: str) -> dict[str, str] | None:
    """Cached file of published weights, as timm's overlay; without it, the hub must be reachable.

    The hub's library waits about a minute, with five attempts per file. Raises: OSError, after ten seconds.
    """
    repository = str(getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None) or name)
    for file_name in ("model.safetensors", "pytorch_model.bin"):
        cached = try_to_load_from_cache(repository, file_name)
        if isinstance(cached, str):
            return {"file": cached}
    errors = queue.SimpleQueue[Exception | None]()

    def request() -> None:
        try:
            urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_REACHABLE_S).close()  # noqa: S310 (the hub)
        except Exception as error:  # noqa: BLE001 (raised below)
            errors.put(None if isinstance(error, HTTPError) else error)  # a status is an answer, too
        else:
            errors.put(None)

    # The timeout of a request does not bound the resolution of its name, which takes minutes without a network.
    threading.Thread(target=request, daemon=True).start()
    try:
        error = errors.get(timeout=_REACHABLE_S)
    except queue.Empty:
        raise TimeoutError(f"{constants.ENDPOINT} does not answer within {_REACHABLE_S:g} s") from None
    if error is not None:
        raise error
    return None
