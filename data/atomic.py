"""Atomic writes: a file appears under its name complete or not at all.

Used for all output: labeling results, manifests, checkpoints, downloads.
"""

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final
from uuid import uuid4

# On Windows, a file that a program has open cannot be replaced. Virus scanners and indexers hold it briefly, a
# spreadsheet until it is closed. Elsewhere, a refusal is final.
_RETRY_S: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if os.name == "nt" else ()


@contextlib.contextmanager
def atomic_path(target: Path, *, staging: Path | None = None, durable: bool = True) -> Iterator[Path]:
    """A temporary path that is renamed to `target` if the block succeeds and removed if it fails.

    For writers that open a path themselves, such as `numpy.save`; `atomic_file` opens the file.

    Args:
        target: an existing file is replaced, or left unchanged if the block raises.
        staging: folder for the temporary file, on the same file system; by default, the folder of `target`.
        durable: whether to sync before the rename; otherwise, a power failure may leave an empty file.
    Raises: OSError.
    """
    folder = target.parent if staging is None else staging
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f".{uuid4().hex}.part{target.suffix[:16]}"
    try:
        yield part
        if durable:
            with part.open("r+b") as file:
                os.fsync(file.fileno())
        _rename(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def atomic_file(
    target: Path, mode: str = "wb", *, staging: Path | None = None, durable: bool = True
) -> Iterator[IO[Any]]:
    """Open a file that appears at `target` if the block succeeds. Text is UTF-8, with line ends as written."""
    text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
    with atomic_path(target, staging=staging, durable=durable) as part, part.open(mode, **text) as file:  # type: ignore[call-overload]  # the mode decides
        yield file


def write_atomic(target: Path, payload: bytes | str, *, staging: Path | None = None, durable: bool = True) -> None:
    """Write a complete file; see `atomic_path`."""
    with atomic_file(target, staging=staging, durable=durable) as file:
        file.write(payload.encode("utf-8") if isinstance(payload, str) else payload)


def _rename(part: Path, target: Path) -> None:
    for pause_s in (*_RETRY_S, None):
        try:
            part.replace(target)
        except FileNotFoundError:  # The folder is created only if it is missing: checks of millions of images are slow.
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
        except PermissionError as error:
            if not _RETRY_S:
                raise
            if pause_s is None:
                reason = "it is open in another program. Close it there and repeat the command"
                raise PermissionError(errno.EACCES, reason, str(target)) from error
            time.sleep(pause_s)
            continue
        return
