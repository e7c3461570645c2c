"""Initialization from third-party weights: a state dict of a timm model in a .safetensors or .pth file."""

import pickle
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models._manipulate import adapt_input_conv
from torch import Tensor

from mien.data.errors import MienError
from mien.models.network import FaceNetwork

_WRAPPED_IN: Final = ("state_dict", "model_state_dict", "model", "model_ema", "weights")
_PREFIXES: Final = ("module.", "model.", "backbone.", "network.", "encoder.")
_OURS: Final = "backbone.network."
# exceptions of torch's unpickler for bytes that are not a pickle
_UNREADABLE: Final = (OSError, SafetensorError, RuntimeError, EOFError, LookupError, ValueError)


class ForeignWeightsError(MienError):
    """A file without a matching state dict."""


def read_foreign(network: FaceNetwork, path: Path) -> dict[str, Tensor]:
    """Read weights under the names of `network`, without a classifier for other classes.

    For a luminance network, the weights of the first convolution are summed over the color channels.
    Raises: ForeignWeightsError, if the file cannot be read or no name matches.
    """
    own = network.state_dict()
    weights = {f"{_OURS}{name}": value for name, value in _named_as(own, _read(path)).items()}
    if not weights:
        raise ForeignWeightsError(f"model.init_from {path}: no tensor name matches this timm network")
    for name, value in weights.items():
        if name in own and value.ndim == own[name].ndim == 4 and value.shape[1] == 3 and own[name].shape[1] == 1:
            weights[name] = adapt_input_conv(1, value)
    return weights


def _read(path: Path) -> dict[str, Tensor]:
    try:
        state: Any = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # whose message advises to run the code
        raise ForeignWeightsError(
            f"model.init_from {path}: not a file of tensors only: it is damaged, or has other objects, such as a whole "
            "network, whose code is not run. Save the state dict: torch.save(network.state_dict(), path)."
        ) from error
    except _UNREADABLE as error:
        why = str(error) or "it is empty"
        raise ForeignWeightsError(f"model.init_from {path}: cannot be read as a state dict ({why})") from error
    if not isinstance(state, dict):
        raise ForeignWeightsError(f"model.init_from {path}: expected a state dict, found {type(state).__name__}")
    wrapped = [state[name] for name in _WRAPPED_IN if isinstance(state.get(name), dict)]
    state = wrapped[0] if wrapped else state
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _named_as(own: dict[str, Tensor], state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors whose names, without prefixes of wrappers, match the network."""
    known = {name.removeprefix(_OURS) for name in own if name.startswith(_OURS)}
    named = {}
    for name, value in state.items():
        bare = name
        while bare not in known and any(bare.startswith(prefix) for prefix in _PREFIXES):
            bare = bare.split(".", 1)[1]
        if bare in known:
            named[bare] = value
    return named
