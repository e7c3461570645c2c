"""Data set of face crops in `train/<label>/`, for the reader of class folders.

mien data check folders out/classes
"""

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import uuid4

SPLIT: Final = "train"


@dataclass(frozen=True, slots=True)
class Crop:
    """One face of the data set: label, file name, and the path or the encoded bytes of its image."""

    label: str
    name: str
    source: Path | bytes

    @property
    def path(self) -> str:
        """Path in the data set."""
        return f"{SPLIT}/{self.label}/{self.name}"


def write_class_folders(staging: Path, target: Path, crops: Iterable[Crop], *, link: bool) -> int:
    """Write crops by label to `target`, which replaces an earlier one atomically.

    Args:
        staging: temporary folder on the same disk as `target`.
        target: replaced with its whole content, which the caller has checked.
        link: whether to write relative symbolic links instead of copies.
    Returns: number of crops.
    """
    staged = staging / f".classes-{uuid4().hex}"
    staged.mkdir(parents=True)
    count = 0
    for crop in crops:
        path = staged / crop.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(crop.source, bytes):
            path.write_bytes(crop.source)
        elif link:
            path.symlink_to(os.path.relpath(crop.source, (target / crop.path).parent))
        else:
            shutil.copyfile(crop.source, path)
        count += 1
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        shutil.rmtree(target)
    staged.replace(target)
    return count
