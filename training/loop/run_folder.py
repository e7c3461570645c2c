"""Run folders, written by training and read by evaluation, distillation and export."""

import json
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeVar

import cv2
import torch
import yaml
from pydantic import BaseModel, ValidationError
from torch import nn

from mien.data.atomic import write_atomic
from mien.data.contract import EIGHT_LABELS, LABELS, contract_id
from mien.data.errors import MienError
from mien.models.backbones import BackboneConfig
from mien.models.network import FaceNetwork
from mien.training.config import ModelConfig, Recipe, RunRecipe, parse_as
from mien.training.loop import checkpoint

RECIPE_NAME: Final = "recipe.yaml"
METRICS_NAME: Final = "metrics.jsonl"
FACTS_NAME: Final = "run.json"
R = TypeVar("R", bound=RunRecipe)
_LIBRARIES: Final = ("timm", "albumentations", "numpy")


class RunError(MienError):
    """A run folder that is missing or invalid."""


def build_network(model: ModelConfig, classes: int = len(LABELS)) -> FaceNetwork:
    """Build the network of a recipe, with an output per label: the seven in `LABELS` order, contempt last."""
    config = BackboneConfig(
        name=model.name,
        num_classes=classes,
        in_chans=1 if model.color == "luminance" else 3,
        img_size=model.img_size,
        drop_rate=model.drop_rate,
        drop_path_rate=model.drop_path_rate,
        pretrained=model.pretrained,
        scratch_if_unavailable=model.scratch_if_unavailable,
        options=dict(model.options),
    )
    return FaceNetwork(model.family, config, color=model.color, normalization=model.normalization)


def parameters(network: nn.Module) -> int:
    """Number of trained parameters."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def start_run(folder: Path, recipe: BaseModel, facts: dict[str, Any]) -> None:
    """Write recipe and facts of a run; for a resumed run, append its commit and environment.

    Args:
        folder: run folder, new or of the same recipe.
        recipe: resolved recipe.
        facts: further facts; `data` has the index hash of each split.
    Raises: RunError, if the folder contains a run of another recipe, or if the data has changed since.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be created ({error.strerror}). Choose another --out.") from error
    path = folder / RECIPE_NAME
    if path.exists() and _stored(path, type(recipe)) != _without_runtime(recipe):
        raise RunError(f"{folder} contains a run of another recipe: choose another --out, or remove it")
    here = {"commit": commit(), **environment()}
    everything = {"contract_id": contract_id(), **here, **facts}
    if checkpoint.exists(folder) and (folder / FACTS_NAME).exists():
        started = read_facts(folder)
        _check_same_data(folder, started["data"], facts["data"])
        everything = started | {"resumed": [*started.get("resumed", []), here]}
    write_atomic(path, yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
    write_atomic(folder / FACTS_NAME, json.dumps(everything, indent=2) + "\n")


def _check_same_data(folder: Path, before: dict[str, str], now: dict[str, str]) -> None:
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed:
        raise RunError(
            f"{folder}: {', '.join(changed)} changed since the run started. Restore the data to resume, or choose "
            "another --out to train on the current data."
        )


def _stored(path: Path, schema: type[BaseModel]) -> dict[str, Any] | None:
    """Recipe of a folder, with defaults for keys added since; None if it does not match the schema."""
    try:
        return _without_runtime(schema.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))))
    except ValidationError:
        return None


def _without_runtime(recipe: BaseModel) -> dict[str, Any]:
    return recipe.model_dump(mode="json", exclude={"runtime"})


def commit() -> str:
    """Commit of the project, with `+` if there are local changes; `unknown` outside of a checkout."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = _git("status", "--porcelain", "--", ":/data", ":/models/*.py", ":/models/backbones", ":/training")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def _git(*arguments: str) -> str:
    root = Path(__file__).parents[2]
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)  # noqa: S603 (fixed words)
    return done.stdout.strip()


def environment() -> dict[str, Any]:
    """Versions and hardware."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "libraries": {name: version(name) for name in _LIBRARIES} | {"opencv": cv2.__version__},
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else _cpu_model(),
        "cpu": _cpu_model(),
        "threads": torch.get_num_threads(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []  # not Linux
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def read_run(folder: Path) -> Recipe:
    """Return the recipe of a run of training/train.py. Raises: RunError, RecipeError."""
    return read_run_as(Recipe, folder)


def read_run_as(schema: type[R], folder: Path) -> R:
    """Return the recipe of a run. Raises: RunError, RecipeError."""
    try:
        values = yaml.safe_load((folder / RECIPE_NAME).read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{folder}: not a run folder, cannot read {RECIPE_NAME} ({error.strerror})") from error
    return parse_as(schema, values, origin=str(folder / RECIPE_NAME))


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of `start_run`: commit, environment, index hashes of the data."""
    facts: dict[str, Any] = json.loads((folder / FACTS_NAME).read_text(encoding="utf-8"))
    return facts


def load_best(folder: Path) -> tuple[FaceNetwork, dict[str, Any]]:
    """Return the network with the best weights, in eval mode, and its checkpoint.

    Raises: RunError, if the run used other labels or another crop contract.
    """
    recipe = read_run(folder)
    state = checkpoint.read(folder / checkpoint.BEST)
    if tuple(state["labels"]) not in (LABELS, EIGHT_LABELS) or state["contract_id"] != contract_id():
        raise RunError(
            f"{folder}: trained with labels {state['labels']} and contract {state['contract_id']}; this build has "
            f"{LABELS} and {contract_id()}. Train it again, or check out commit {read_facts(folder)['commit']}."
        )
    network = build_network(recipe.model.model_copy(update={"pretrained": False}), len(state["labels"]))
    network.load_state_dict(state["weights"])
    return network.eval(), state
