"""Helpers for training tests: class folders of drawn faces, recipes that take a second, and the metrics of runs."""

import json
from pathlib import Path
from typing import Any

import yaml

from mien.data.contract import LABELS, contract_id
from mien.models.network import FaceNetwork
from mien.training.config import DataSource, Recipe, parse_as
from mien.training.data import Split, read_split
from mien.training.run import BEST, METRICS, RECIPE, save
from tests.support.data_sets import make_folders
from tests.support.models import DEIT, SMALL

RUNTIME: dict[str, object] = {
    "device": "cpu", "precision": "fp32", "workers": 0, "threads": 1, "checkpoint_every_steps": 2, "log_every_steps": 1,
}  # fmt: skip

TINY_CNN: dict[str, object] = {"family": "cnn", "name": "test_resnet", "img_size": 28}
_OPTIONS = SMALL | {"patch_px": 8}
_HYBRID = {"stem": "hybrid", "stem_widths": [8, 16], "stem_blocks": [1, 0, 1]}
# no BatchNorm, and nothing random inside the network
PLAIN_DEIT: dict[str, object] = {
    "family": "deit", "name": "deit_tiny_patch16_224", "arch": "tiny", "img_size": 56, "options": _OPTIONS,
}  # fmt: skip
TINY_DEIT = PLAIN_DEIT | {"name": DEIT, "drop_path_rate": 0.2, "options": _OPTIONS | _HYBRID}


def drawn_faces(root: Path, *, train: int = 8, valid: int = 4) -> Path:
    """Write class folders of drawn faces, on average `train` and `valid` of each class, and at least one; equal counts
    would hide weights and corrections by class. Returns `root`.
    """
    shares = dict(zip(LABELS, (20, 3, 3, 9, 9, 6, 6), strict=True))
    splits = {"train": train, "valid": valid}
    counts = {
        split: {label: max(1, round(mean * share / 8)) for label, share in shares.items()}
        for split, mean in splits.items()
    }
    return make_folders(root, counts)


def valid_faces(root: Path, kind: str = "folders", **options: object) -> Split:
    """The validation split of a set."""
    return read_split(DataSource(kind=kind, split="valid", root=root, options=options))


def data_of(root: Path, kind: str = "folders", **options: object) -> dict[str, object]:
    """The data of a recipe: splits train and valid of one set."""
    source = {"kind": kind, "root": str(root), "options": options}
    return {
        "train": [source | {"split": "train"}],
        "valid": source | {"split": "valid"},
        "cache_dir": str(root.parent / "cache"),
    }


def small_recipe(root: Path, *, model: dict[str, object] = TINY_CNN, **changes: object) -> Recipe:
    """A recipe of two epochs of seven steps that logs and checkpoints often."""
    values: dict[str, object] = {
        "name": "small",
        "epochs": 2,
        "batch_size": 8,
        "data": data_of(root),
        "model": model,
        "optim": {"learning_rate": 3e-3, "warmup_epochs": 0.2, "ema_decay": 0.5},
        "runtime": RUNTIME,
    }
    return parse_as(Recipe, values | changes, origin="tests")


def untrained_run(folder: Path, model: dict[str, object]) -> Path:
    """Write a run folder with the random weights of a network. Returns `folder`."""
    recipe = small_recipe(folder / "faces", model=model)
    state = {"weights": FaceNetwork(recipe.model).state_dict(), "contract_id": contract_id(), "labels": list(LABELS)}
    save(folder / BEST, state | {"head": "class"})
    write_recipe(folder / RECIPE, recipe)
    return folder


def write_recipe(path: Path, recipe: Recipe) -> Path:
    """Write the YAML file of a recipe. Returns `path`."""
    path.write_text(yaml.safe_dump(recipe.model_dump(mode="json")), encoding="utf-8")
    return path


def with_runtime(recipe: Recipe, **changes: object) -> Recipe:
    """The recipe with other runtime options."""
    return recipe.model_copy(update={"runtime": recipe.runtime.model_copy(update=changes)})


def metric_lines(out: Path) -> list[dict[str, Any]]:
    """Lines of the metrics file of a run."""
    return [json.loads(line) for line in (out / METRICS).read_text(encoding="utf-8").splitlines()]


def losses(out: Path) -> dict[int, float]:
    """Logged losses of a run, by step."""
    return {line["step"]: line["loss"] for line in metric_lines(out) if "loss" in line}
