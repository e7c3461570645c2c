"""Folder of a new artifact."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_artifact(final: Path) -> Iterator[Path]:
    """A folder that is renamed to `final` if the block succeeds and removed if it fails.

    Raises: FileExistsError, if `final` exists.
    """
    if final.exists():
        raise FileExistsError(f"{final} exists, and artifacts are never overwritten: choose another --tag")
    staging = final.with_name(f".{final.name}.part")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        yield staging
        staging.rename(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
