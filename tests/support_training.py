"""Helpers for training tests: class folders of drawn faces, and recipes that take a second."""

from pathlib import Path

from data.contract import LABELS
from tests.data_sets import make_folders
from training.config import Recipe, parse_as

TINY_CNN: dict[str, object] = {"family": "cnn", "name": "test_resnet", "img_size": 28}
TINY_DEIT: dict[str, object] = {
    "family": "deit",
    "name": "deit_tiny_distilled_patch16_224",
    "arch": "tiny",
    "img_size": 56,
    "drop_path_rate": 0.2,
    "options": {
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 2,
        "patch_px": 8,
        "stem": "hybrid",
        "stem_widths": [8, 16],
        "stem_blocks": [1, 0, 1],
    },
}


def drawn_faces(root: Path, *, train: int = 8, valid: int = 4) -> Path:
    """Write class folders of drawn faces, `train` and `valid` of each class. Returns `root`."""
    return make_folders(root, {"train": dict.fromkeys(LABELS, train), "valid": dict.fromkeys(LABELS, valid)})


def small_recipe(root: Path, *, model: dict[str, object] = TINY_CNN, **changes: object) -> Recipe:
    """A recipe of two epochs of seven steps that logs and checkpoints often."""
    values: dict[str, object] = {
        "name": "small",
        "epochs": 2,
        "batch_size": 8,
        "data": {
            "train": [{"kind": "folders", "split": "train", "root": str(root)}],
            "valid": {"kind": "folders", "split": "valid", "root": str(root)},
            "cache_dir": str(root.parent / "cache"),
        },
        "model": model,
        "optim": {"learning_rate": 3e-3, "warmup_epochs": 0.2, "ema_decay": 0.5},
        "runtime": {
            "device": "cpu",
            "precision": "fp32",
            "workers": 0,
            "threads": 1,
            "checkpoint_every_steps": 2,
            "log_every_steps": 1,
        },
    }
    return parse_as(Recipe, values | changes, origin="tests")
