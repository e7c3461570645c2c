"""Run folders, written by training and read by evaluation, distillation and export, and the provenance they record."""

import json
import logging
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import cv2
import filelock
import torch
import yaml
from pydantic import BaseModel
from torch import nn

from mien.data.atomic import write_atomic
from mien.data.contract import contract_id
from mien.data.errors import MienError
from mien.models.backbones import published_terms
from mien.models.manifest import MANIFEST_NAME, load_artifact, read_manifest, sha256_of, split_terms
from mien.models.network import FaceNetwork
from mien.training import checkpoint
from mien.training.config import DataSource, ModelConfig, Recipe, parse_as
from mien.training.faces import Split

logger = logging.getLogger("mien.training")

RECIPE_NAME: Final = "recipe.yaml"
METRICS_NAME: Final = "metrics.jsonl"
FACTS_NAME: Final = "run.json"
_SHOWN_CHARACTERS: Final = 60
_LIBRARIES: Final = ("timm", "albumentations", "numpy")


class RunError(MienError):
    """A run folder that is missing or invalid."""


def untrained_network(model: ModelConfig, num_classes: int) -> FaceNetwork:
    """Build the network of a recipe with random weights, to load trained ones."""
    return FaceNetwork(model.model_copy(update={"pretrained": False}), num_classes)


def parameters(network: nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in network.parameters())


def create_folder(folder: Path) -> None:
    """Create the folder of a run, unless it exists. Raises: RunError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: cannot be created ({error.strerror}). Choose another --out (or --runs).") from error


def check_run(folder: Path, recipe: Recipe, facts: dict[str, Any]) -> None:
    """Check that a folder has no run of another recipe, or with other data or teachers.

    `runtime`, `data.cache_dir` and the roots of the data may differ. Other versions of the libraries are logged.

    Args:
        facts: see `record_run`; the hashes of `data` and `weights_from` are compared, and the crop contract.
    Raises: RunError; RecipeError, if the recipe of the folder is invalid.
    """
    if (folder / RECIPE_NAME).exists() and (differences := ", ".join(_differences(read_run(folder), recipe))):
        raise RunError(
            f"{folder} contains a run of another recipe ({differences}): choose another --out (or --runs), or remove it"
        )
    if checkpoint.exists(folder) and (folder / FACTS_NAME).exists():
        started = read_facts(folder)
        data, before, weights = facts["data"], started["data"], _weights(started | split_terms(started))
        changed = sorted(name for name in before.keys() | data.keys() if before.get(name) != data.get(name))
        # a resumed run does not read its initial weights again
        changed += sorted(name for name, sha256 in _weights(facts).items() if weights.get(name, sha256) != sha256)
        if started.get("contract_id", contract_id()) != contract_id():
            changed.append("the crop contract")
        if changed:
            raise RunError(
                f"{folder}: {', '.join(changed)} changed since the run started. Restore it to resume, or choose "
                "another --out (or --runs) to train with the current data and teachers."
            )
        then, now = ({"torch": of.get("torch"), **of.get("libraries", {})} for of in (started, environment()))
        updates = [f"{name} {then[name]}, now {now[name]}" for name in now if then.get(name) not in (None, now[name])]
        if updates:
            listed = ", ".join(updates)
            logger.warning("%s: resumed with other versions, so losses may differ slightly: %s", folder, listed)


def trained_commit(facts: dict[str, Any]) -> str:
    """The commit that trained a run, of a resumed one the last."""
    return str([facts, *facts.get("resumed", [])][-1]["commit"])


def _weights(facts: dict[str, Any]) -> dict[str, str]:
    """Hashes of all weights that a run read."""
    weights: dict[str, str] = facts["weights_from"]
    return weights


def _differences(before: BaseModel, after: BaseModel, prefix: str = "") -> Iterator[str]:
    """Keys with different values, except those that do not change the result: `epochs 2, now 3`."""
    for key in type(after).model_fields:
        old, new = getattr(before, key), getattr(after, key)
        if key in ("runtime", "cache_dir", "root", "allow_missing_classes") or old == new:
            continue  # the data at a root are compared by their hash
        if isinstance(old, BaseModel) and isinstance(new, BaseModel):
            yield from _differences(old, new, f"{prefix}{key}.")
        elif key == "train" and len(old) == len(new):
            for number, pair in enumerate(zip(old, new, strict=True)):
                yield from _differences(*pair, f"{prefix}{key}.{number}.")
        else:
            short = len(f"{old}{new}") < _SHOWN_CHARACTERS
            yield f"{prefix}{key} {old}, now {new}" if short else f"{prefix}{key}"


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Lock a run folder for this process; the system releases the lock even if the process is killed.

    Raises: RunError, if another process trains in the folder.
    """
    try:
        lock = filelock.FileLock(folder / ".lock", blocking=False).acquire()
    except filelock.Timeout as error:
        raise RunError(
            f"{folder}: another process trains in this folder. Wait until it ends, or choose another --out."
        ) from error
    with lock:
        yield


def record_run(folder: Path, recipe: Recipe, facts: dict[str, Any], *, device: torch.device) -> None:
    """Write recipe and facts of a run; for a resumed run, append time, commit, environment and device."""
    here = {"started": datetime.now(UTC).isoformat(), "commit": commit(), **environment()}
    here["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else here["cpu"]
    recorded = {"contract_id": contract_id(), **here, **facts}
    if checkpoint.exists(folder) and (folder / FACTS_NAME).exists():
        started = read_facts(folder)
        recorded = started | {"resumed": [*started.get("resumed", []), here]}
    write_atomic(folder / RECIPE_NAME, yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
    write_atomic(folder / FACTS_NAME, json.dumps(recorded, indent=2) + "\n")


def commit() -> str:
    """Commit of the project, with `+` if there are local changes; `unknown` outside of a checkout."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 (fixed)

    try:
        git("ls-files", "--error-unmatch", here.name)  # fails if installed below the checkout of another project
        head = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--", ":/data", ":/models/*.py", ":/training")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def environment() -> dict[str, Any]:
    """Versions and processor."""
    cpu = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):  # Linux names it
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "libraries": {name: version(name) for name in _LIBRARIES} | {"opencv": cv2.__version__},
        "cpu": cpu,
        "threads": torch.get_num_threads(),
    }


def read_run(folder: Path) -> Recipe:
    """Return the recipe of a run. Raises: RunError, RecipeError."""
    try:
        values = yaml.safe_load((folder / RECIPE_NAME).read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{folder}: not a run folder, cannot read {RECIPE_NAME} ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RunError(f"{folder}: {RECIPE_NAME} is damaged ({error}). Restore it, or train again.") from error
    return parse_as(Recipe, values, origin=str(folder / RECIPE_NAME))


def read_facts(folder: Path) -> dict[str, Any]:
    """Return the facts of `record_run`: commit, environment, index hashes of the data. Raises: RunError."""
    try:
        facts: dict[str, Any] = json.loads((folder / FACTS_NAME).read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{folder}: {FACTS_NAME} is damaged ({error}). Restore it, or train again.") from error
    return facts


def load_best(folder: Path) -> tuple[FaceNetwork, dict[str, Any]]:
    """Return the network with the best weights, in eval mode, and its checkpoint.

    Raises: RunError, if the run used another crop contract.
    """
    recipe = read_run(folder)
    state = checkpoint.read(folder / checkpoint.BEST)
    if state["contract_id"] != contract_id():
        raise RunError(
            f"{folder}: trained with contract {state['contract_id']}; this build has {contract_id()}. Train it again, "
            f"or check out commit {read_facts(folder)['commit']}."
        )
    network = untrained_network(recipe.model, len(state["labels"]))
    network.load_state_dict(state["weights"])
    return network.eval(), state


def data_facts(sources: Sequence[DataSource], parts: Sequence[Split]) -> dict[str, Any]:
    """Index hash (`data`) and number of faces (`faces`) of each source by kind/split, numbered if that repeats."""
    names: list[str] = []
    for source in sources:
        name = f"{source.kind}/{source.split}"
        repeated = sum(other == name or other.startswith(f"{name} (") for other in names)
        names.append(f"{name} ({repeated + 1})" if repeated else name)
    return {
        "data": {name: part.index_sha256 for name, part in zip(names, parts, strict=True)},
        "faces": {name: len(part) for name, part in zip(names, parts, strict=True)},
    }


def provenance(model: ModelConfig, sources: dict[str, str], *, folders: tuple[Path, ...]) -> dict[str, Any]:
    """Collect the provenance for `run.json` and the manifest.

    Args:
        model: the recipe's model.
        sources: index hash of each training split, by kind/split.
        folders: runs and artifacts used for initialization or as teachers.
    Returns: `learned_from`, hashes by kind/split, including inherited ones; `weights_from`, hashes of weights by name;
        `weight_terms`, publisher and license of third-party weights by name.
    Raises: RunError, ArtifactError, if a folder has no weights.
    """
    learned, weights, terms = dict(sources), {}, {}
    if model.pretrained:
        terms[f"{model.family}/{model.name}"] = published_terms(model.family)
    for folder in folders:
        if (folder / MANIFEST_NAME).exists():
            own = load_artifact(folder).graph("fp32").sha256
        elif (folder / checkpoint.BEST).exists():
            own = sha256_of(folder / checkpoint.BEST)
        else:
            raise RunError(f"{folder}: found neither {MANIFEST_NAME} nor {checkpoint.BEST}")
        weights[folder.name if weights.get(folder.name, own) == own else "/".join(folder.parts[-2:])] = own
        inherited = recorded(folder)
        add_learned(learned, inherited["learned_from"], of=folder.name)
        weights = inherited["weights_from"] | weights
        terms = inherited["weight_terms"] | terms
    return {"learned_from": learned, "weights_from": weights, "weight_terms": terms}


def add_learned(learned: dict[str, str], more: Mapping[str, str], *, of: str) -> None:
    """Add index hashes by kind/split; `of` tells apart splits of the same name with other faces."""
    for name, sha256 in more.items():
        learned[name if learned.get(name, sha256) == sha256 else f"{name} of {of}"] = sha256


def recorded(folder: Path) -> dict[str, dict[str, str]]:
    """Provenance of the weights of a run or an artifact, as `provenance` returns it."""
    if (folder / MANIFEST_NAME).exists():
        return read_manifest(folder).model_dump(include={"learned_from", "weights_from", "weight_terms"})
    facts = read_facts(folder)
    return {"learned_from": facts["learned_from"], **split_terms(facts)}
