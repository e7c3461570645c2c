"""Checkpoints that survive a kill at any time: written atomically, with the previous one kept."""

import logging
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

from mien.data.atomic import atomic_file
from mien.data.errors import MienError

logger = logging.getLogger(__name__)

LAST: Final = "last.pt"
PREVIOUS: Final = "previous.pt"
BEST: Final = "best.pt"
# a kill between the two renames of `save_last` leaves next.pt as the newest
_NEWEST_FIRST: Final = ("next.pt", LAST, PREVIOUS)


class CheckpointError(MienError):
    """A checkpoint that cannot be written or read."""


def save(path: Path, state: dict[str, Any]) -> None:
    """Write `state` atomically. Raises: CheckpointError."""
    try:
        with atomic_file(path) as file:
            torch.save(state, file)
    except (OSError, RuntimeError) as error:
        size = sum(leaf.nbytes for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor))
        why = no_space(path.parent, size) or str(error)
        raise CheckpointError(f"{path}: not written ({why}); an earlier checkpoint is unchanged") from error


def no_space(folder: Path, wanted_bytes: int) -> str:
    """Message about a full disk, with the needed and free space; "" if there is enough space."""
    free = shutil.disk_usage(folder).free
    if free >= wanted_bytes:
        return ""
    return f"no space left on the disk: {wanted_bytes / 1e6:,.0f} MB needed, {free / 1e6:,.0f} MB free"


def save_last(folder: Path, state: dict[str, Any]) -> None:
    """Write `last.pt`, and keep the old one as `previous.pt`. Raises: CheckpointError."""
    fresh = folder / "next.pt"
    save(fresh, state)
    if (folder / LAST).exists():
        (folder / LAST).replace(folder / PREVIOUS)
    fresh.replace(folder / LAST)


def read(path: Path) -> dict[str, Any]:
    """Read one checkpoint. Raises: CheckpointError, if it is missing, truncated or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path}: damaged at {damaged}")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, zipfile.BadZipFile, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error})") from error
    return state


def exists(folder: Path) -> bool:
    """Whether a run has a checkpoint, intact or not."""
    return any((folder / name).exists() for name in _NEWEST_FIRST)


def read_newest(folder: Path) -> dict[str, Any] | None:
    """Return the newest intact checkpoint, or None if there is none; damaged ones are skipped with a warning.

    Raises: CheckpointError, if there are checkpoints but none is intact.
    """
    problems = []
    for path in (folder / name for name in _NEWEST_FIRST if (folder / name).exists()):
        try:
            return read(path)
        except CheckpointError as error:
            logger.warning("%s; falling back to the previous checkpoint", error)
            problems.append(str(error))
    if problems:
        raise CheckpointError("no checkpoint can be resumed: " + "; ".join(problems))
    return None
