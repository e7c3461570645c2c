"""How does a table of faces become a data set? Crops in `train/<label>/`, as the reader of class folders takes them.

python -m data check folders out/classes
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

Source = Path | bytes

SPLIT: Final = "train"


def write_class_folders(staging: Path, target: Path, crops: Iterable[tuple[str, str, Source]], *, link: bool) -> int:
    """Fill `target` with crops by label; it appears whole, in place of an earlier one.

    Args:
        staging: folder on the same disk as `target`, where it is filled first.
        crops: label, file name and picture of each face: where it lies, or its bytes.
        link: symbolic links, relative, instead of copies.
    Returns: how many crops there are.
    """
    staged = staging / f".classes-{os.getpid()}"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir(parents=True)
    count = 0
    for label, name, source in crops:
        folder = staged / SPLIT / label
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(source, bytes):
            (folder / name).write_bytes(source)
        elif link:
            (folder / name).symlink_to(os.path.relpath(source, target / SPLIT / label))
        else:
            shutil.copyfile(source, folder / name)
        count += 1
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        shutil.rmtree(target)
    staged.replace(target)
    return count
