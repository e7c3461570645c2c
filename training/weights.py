"""Trained networks, of a run or an artifact, and `model.safetensors`, the weights of an artifact."""

from pathlib import Path
from typing import Final

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from mien.models.manifest import MANIFEST_NAME, REPORT_NAME, ArtifactError, Manifest, load_artifact, read_report
from mien.models.network import FaceNetwork, Head
from mien.training.config import ModelConfig, parse_as
from mien.training.run import load_best, untrained_network

WEIGHTS_NAME: Final = "model.safetensors"


def save_weights(network: nn.Module, folder: Path) -> None:
    """Write `model.safetensors` to an artifact folder. Raises: OSError."""
    state = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    try:
        save_file(state, folder / WEIGHTS_NAME)
    except SafetensorError as error:
        raise OSError(f"{folder / WEIGHTS_NAME}: {error}") from error
    (folder / WEIGHTS_NAME).chmod(0o644)  # the library makes it readable by its owner only


def load_network(folder: Path) -> tuple[FaceNetwork, Manifest]:
    """Verify an artifact and build its network in eval mode.

    Raises: ArtifactError, also if it has no weights; RecipeError, for options that this version does not have.
    """
    manifest, recipe = load_artifact(folder), read_report(folder).get("recipe", {})
    if WEIGHTS_NAME not in manifest.files:
        several = "members" in recipe
        remedy = "it averages several networks: take one of them" if several else "export its run again"
        raise ArtifactError(f"artifact {manifest.name}: no {WEIGHTS_NAME}; {remedy}")
    model = parse_as(ModelConfig, recipe["model"], origin=str(folder / REPORT_NAME))
    network = untrained_network(model, len(manifest.labels))
    try:
        network.load_state_dict(load_file(folder / WEIGHTS_NAME))
    except RuntimeError as error:
        raise ArtifactError(f"artifact {manifest.name}: {WEIGHTS_NAME} is of another network ({error})") from error
    return network.eval(), manifest


def load_trained(folder: Path) -> tuple[FaceNetwork, Head, tuple[str, ...]]:
    """Network of a run or an artifact in eval mode, its selected head, and its labels.

    Raises: RunError, ArtifactError, if it is missing or damaged, or has another contract.
    """
    if (folder / MANIFEST_NAME).exists():
        network, manifest = load_network(folder)
        return network, read_report(folder)["head"], manifest.labels
    network, state = load_best(folder)
    return network, state["head"], tuple(state["labels"])
