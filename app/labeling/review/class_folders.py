"""A data set of face crops in `train/<label>/`, as the reader of class folders takes them.

python -m data check folders out/classes
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
    """One face of the data set: its label, its file name, and where its image lies, or its encoded bytes."""

    label: str
    name: str
    source: Path | bytes

    @property
    def path(self) -> str:
        """Where it is within the data set."""
        return f"{SPLIT}/{self.label}/{self.name}"


def write_class_folders(staging: Path, target: Path, crops: Iterable[Crop], *, link: bool) -> int:
    """Fill `target` with crops by label; it appears whole, in place of an earlier one.

    Args:
        staging: folder on the same disk as `target`, where it is filled first.
        target: removed with all that it holds, which the caller has checked.
        link: symbolic links, relative, instead of copies.
    Returns: how many crops there are.
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
