"""How does a file come to be whole or not at all? Written aside, then renamed; and one process per output folder."""

import contextlib
import errno
import os
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from app.errors import MienError

STATE_DIR: Final = ".mien"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class LabellingError(MienError):
    """Labelling cannot start or go on; the message says what to change."""


class DiskFull(LabellingError):
    """No space is left for the output; what was committed stays."""


class OutputLocked(LabellingError):
    """Another process labels into the same folder."""


class OutputRefused(LabellingError):
    """The output folder cannot be written, or the journal in it cannot be used."""


@contextlib.contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Turn "no space left", from the system or SQLite, into DiskFull; other refusals into OutputRefused."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(_full_message(out)) from error
        raise OutputRefused(f"cannot write into {out}: {error.strerror or error}") from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE):
            raise DiskFull(_full_message(out)) from error
        raise OutputRefused(f"journal in {out / STATE_DIR}: {error}") from error
    except sqlite3.DatabaseError as error:
        raise OutputRefused(
            f"journal in {out / STATE_DIR} is damaged ({error}). Move that folder away and run again."
        ) from error


def _full_message(out: Path) -> str:
    return f"no space left for {out}: stopped between two pictures. Free some space and run the same command again."


def parts_dir(out: Path) -> Path:
    """Where files are written before they are renamed: inside `out`, so that renaming never copies."""
    return out / STATE_DIR / "part"


def clear_parts(out: Path) -> None:
    """Remove what a killed run left half written."""
    shutil.rmtree(parts_dir(out), ignore_errors=True)
    parts_dir(out).mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def whole_file(out: Path, target: Path, *, text: bool = False) -> Iterator[IO[Any]]:
    """Open a file that appears at `target`, inside `out`, only once the block has ended well."""
    parts_dir(out).mkdir(parents=True, exist_ok=True)
    part = parts_dir(out) / f"{os.getpid()}-{abs(hash(target)):x}"
    try:
        with part.open("w", encoding="utf-8", newline="") if text else part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def write_picture(out: Path, target: Path, payload: bytes) -> None:
    """Write an encoded picture whole; not synchronised to the disk one by one, which would cost more than labelling."""
    part = parts_dir(out) / f"{os.getpid()}-{abs(hash(target)):x}"
    try:
        part.write_bytes(payload)
        try:
            part.replace(target)
        except FileNotFoundError:
            target.parent.mkdir(parents=True, exist_ok=True)
            part.replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def output_lock(out: Path) -> Iterator[None]:
    """Hold `out` for this process; released by the system even when the process is killed.

    Raises: OutputLocked, naming the other process; OutputRefused, where the folder cannot be made.
    """
    try:
        (out / STATE_DIR).mkdir(parents=True, exist_ok=True)
        file = (out / STATE_DIR / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise OutputRefused(f"cannot create {out / STATE_DIR}: {error.strerror or error}") from error
    with file:
        if not _try_lock(file):
            file.seek(0)
            owner = file.read().strip() or "unknown"
            raise OutputLocked(f"{out} is in use by process {owner}: wait until it has ended, or choose another --out.")
        with contextlib.suppress(OSError):  # the number only serves the message; a full disk must not matter here
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


if sys.platform == "win32":  # pragma: no cover
    import msvcrt

    def _try_lock(file: IO[str]) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(file: IO[str]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def free_bytes(out: Path) -> int:
    """Space left where `out` lies."""
    return shutil.disk_usage(out).free
