"""A run folder and the network it holds: where training writes, and what evaluation, distillation and export read."""

import json
import platform
import subprocess
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from pydantic import BaseModel, ValidationError
from torch import nn

from data.contract import LABELS, contract_id
from models.backbones import BackboneConfig
from models.network import FaceNetwork
from training import checkpoint
from training.config import ModelConfig, Recipe, parse_recipe

RECIPE_NAME: Final = "recipe.yaml"
METRICS_NAME: Final = "metrics.jsonl"
FACTS_NAME: Final = "run.json"


class RunError(RuntimeError):
    """A run folder that is not what is asked of it."""


def build_network(model: ModelConfig) -> FaceNetwork:
    """Build the network of a recipe, with seven outputs in `LABELS` order."""
    config = BackboneConfig(
        name=model.name,
        classes=len(LABELS),
        channels=1 if model.colour == "luminance" else 3,
        input_px=model.input_px,
        drop_rate=model.drop_rate,
        drop_path_rate=model.drop_path_rate,
        pretrained=model.pretrained,
        scratch_if_unavailable=model.scratch_if_unavailable,
        options=dict(model.options),
    )
    return FaceNetwork(model.family, config, colour=model.colour, normalisation=model.normalisation)


def parameters(network: nn.Module) -> int:
    """Number of trained parameters."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def start_run(folder: Path, recipe: BaseModel, facts: dict[str, Any]) -> None:
    """Write what the run depends on. Raises: RunError, when the folder holds another recipe's run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / RECIPE_NAME
    if path.exists() and _stored(path, type(recipe)) != _without_runtime(recipe):
        raise RunError(f"{folder} holds a run of another recipe: choose another --out, or remove it")
    path.write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    everything = {"contract_id": contract_id(), "commit": commit(), **environment(), **facts}
    (folder / FACTS_NAME).write_text(json.dumps(everything, indent=2) + "\n", encoding="utf-8")


def _stored(path: Path, schema: type[BaseModel]) -> dict[str, Any] | None:
    """A folder's recipe with today's defaults for keys that are younger than it; None where it is no such recipe."""
    try:
        return _without_runtime(schema.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))))
    except ValidationError:
        return None


def _without_runtime(recipe: BaseModel) -> dict[str, Any]:
    return recipe.model_dump(mode="json", exclude={"runtime"})


def commit() -> str:
    """The project's commit, with `+` when the tree differs from it; `unknown` outside a checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", "data", "models/*.py", "models/backbones", "training")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    root = Path(__file__).parents[1]
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603 (fixed words)
    return done.stdout.strip()


def environment() -> dict[str, str]:
    """Versions and machine, for the record."""
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {"python": platform.python_version(), "torch": torch.__version__, "device": device}


def read_run(folder: Path) -> Recipe:
    """Return the recipe of a run. Raises: RunError."""
    try:
        values = yaml.safe_load((folder / RECIPE_NAME).read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{folder}: no run here, cannot read {RECIPE_NAME} ({error.strerror})") from error
    return parse_recipe(values, origin=str(folder / RECIPE_NAME))


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what `start_run` recorded besides the recipe: commit, environment, data index hashes."""
    facts: dict[str, Any] = json.loads((folder / FACTS_NAME).read_text(encoding="utf-8"))
    return facts


def load_best(folder: Path) -> tuple[FaceNetwork, dict[str, Any]]:
    """Return the network with the weights that validation chose, in eval mode, and its checkpoint.

    Raises: RunError, when the run was made under other labels or another crop contract.
    """
    recipe = read_run(folder)
    state = checkpoint.read(folder / checkpoint.BEST)
    if tuple(state["labels"]) != LABELS or state["contract_id"] != contract_id():
        raise RunError(
            f"{folder}: trained for labels {state['labels']} under contract {state['contract_id']}; this build has "
            f"{LABELS} and {contract_id()}. Train it again, or check out commit {read_facts(folder)['commit']}."
        )
    network = build_network(recipe.model.model_copy(update={"pretrained": False}))
    network.load_state_dict(state["weights"])
    return network.eval(), state
