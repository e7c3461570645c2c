"""The output folder: one process at a time, whole files only, and no file that is not its own.

Every file is recorded in the journal before it is written. A file that is there without such a record belongs to
somebody else: it is neither replaced nor removed.
"""

import contextlib
import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, Final, Protocol

import filelock

from data.atomic import atomic_file, write_atomic
from data.errors import MienError

STATE_DIR: Final = ".mien"
CORRECTIONS: Final = "corrections.jsonl"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_SQLITE_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)


class LabelingError(MienError):
    """Labeling cannot start or continue; the message says what to change."""


class DiskFull(LabelingError):
    """No space is left for the output; what was committed is kept."""


class OutputLocked(LabelingError):
    """Another process labels into the same folder."""


class OutputRefused(LabelingError):
    """The output folder cannot be written, or the journal in it cannot be used."""


class ForeignFile(LabelingError):
    """A file in the output folder that no earlier run has written is in the way."""


class DamagedJournal(OutputRefused):
    """The journal does not hold what was written to it."""

    def __init__(self, out: Path, what: object) -> None:
        """Say what was found and how to go on."""
        super().__init__(
            f"journal in {out / STATE_DIR} is damaged ({what}). Nothing was changed. Restore it from a "
            "backup, or label into a new --out."
        )


@contextlib.contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Turn "no space left", from the system or SQLite, into DiskFull; other refusals into OutputRefused."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise DiskFull(_full_message(out)) from error
        raise OutputRefused(f"cannot write to {error.filename or out}: {error.strerror or error}.") from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode in _SQLITE_FULL:
            raise DiskFull(_full_message(out)) from error
        if error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN and free_bytes(out) == 0:
            raise DiskFull(_full_message(out)) from error
        raise OutputRefused(f"journal in {out / STATE_DIR}: {error}.") from error
    except sqlite3.DatabaseError as error:
        raise DamagedJournal(out, error) from error


def _full_message(out: Path) -> str:
    return f"no space left for {out}. Everything committed is kept: free some space and rerun the same command."


def free_bytes(out: Path) -> int:
    """Free space at `out` or, where it does not exist yet, at the nearest folder above it."""
    place = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    return shutil.disk_usage(place).free


def parts_dir(out: Path) -> Path:
    """Where files are written before they are renamed: inside `out`, so that renaming never copies."""
    return out / STATE_DIR / "part"


def clear_parts(out: Path) -> None:
    """Remove what a killed run left half written."""
    shutil.rmtree(parts_dir(out), ignore_errors=True)
    parts_dir(out).mkdir(parents=True, exist_ok=True)


class Record(Protocol):
    """The journal's record of the files written, by owner: an output, or the folder of pictures."""

    def claim(self, owner: str, names: Iterable[str]) -> None:
        """Record files before they are written. Raises: ForeignFile."""
        ...

    def is_own(self, name: str) -> bool:
        """Whether a file is recorded."""
        ...

    def stale(self, owner: str, names: Iterable[str]) -> list[str]:
        """Recorded files of an owner other than `names`."""
        ...

    def disown(self, names: Iterable[str]) -> None:
        """Forget files that were removed."""
        ...


class OutputFolder:
    """The folder that outputs are written to, below which only recorded files are replaced or removed.

    Names are relative to it, with forward slashes.
    """

    def __init__(self, path: Path, record: Record) -> None:
        """Write below `path`."""
        self.path = path
        self._record = record

    def check(self, targets: Iterable[str]) -> None:
        """Look, before anything is written, that no file of somebody else has a target's name. Raises: ForeignFile."""
        for target in targets:
            path = self.path / target
            if os.path.lexists(path) and not os.path.isdir(path) and not self._record.is_own(target):
                raise ForeignFile(foreign(path))

    def check_tree(self, name: str) -> None:
        """Look that everything in a folder that is replaced as a whole was written by a run. Raises: ForeignFile."""
        for folder, folders, names in os.walk(self.path / name):
            links = [one for one in folders if os.path.islink(os.path.join(folder, one))]
            for one in (*names, *links):
                below = os.path.relpath(os.path.join(folder, one), self.path).replace(os.sep, "/")
                if not self._record.is_own(below):
                    raise ForeignFile(foreign(self.path / below))

    def claim(self, owner: str, names: Iterable[str]) -> None:
        """Record files before they are written. Raises: ForeignFile."""
        self._record.claim(owner, names)

    @contextlib.contextmanager
    def file(self, owner: str, name: str, mode: str = "w") -> Iterator[IO[Any]]:
        """Open an output file, which replaces the earlier one when the block ends. Raises: ForeignFile, OSError."""
        self.claim(owner, [name])
        with atomic_file(self.path / name, mode, staging=parts_dir(self.path)) as file:
            yield file

    def write_picture(self, name: str, payload: bytes) -> None:
        """Write an encoded image under a recorded name.

        Not synchronized to the disk one by one, which would take longer than labeling.
        """
        write_atomic(self.path / name, payload, staging=parts_dir(self.path), durable=False)

    @contextlib.contextmanager
    def tree(self, name: str, files: Callable[[], Iterable[str]]) -> Iterator[None]:
        """Record the files of a folder that the block replaces as a whole. Raises: ForeignFile."""
        self.check_tree(name)
        self.claim(name, files())
        yield
        self._record.disown(self._record.stale(name, files()))


def foreign(path: Path) -> str:
    """The message of a file that no run has written."""
    return f"{path} is in the way, and no earlier run has written it. Move it, or choose another --out."


def remove_files(out: Path, names: Iterable[str]) -> int:
    """Remove files below `out`, and the folders that this leaves empty; returns how many files there were."""
    removed = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(out / name)
            removed += 1
        folder = os.path.dirname(name)
        with contextlib.suppress(OSError):  # not empty, or gone
            while folder:
                os.rmdir(out / folder)
                folder = os.path.dirname(folder)
    return removed


@contextlib.contextmanager
def output_lock(out: Path) -> Iterator[None]:
    """Hold `out` for this process; released by the system even when the process is killed.

    Raises: OutputLocked, naming the other process; DiskFull; OutputRefused, where the folder cannot be made.
    """
    state = out / STATE_DIR
    lock = filelock.FileLock(state / "lock", blocking=False)
    with disk_errors(out):
        state.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise OutputLocked(
                f"{out} is in use by process {_owner(state)}: wait until it has ended, or choose another --out."
            ) from error
    try:
        with contextlib.suppress(OSError):  # the number only serves the message
            (state / "owner").write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        lock.release()


def _owner(state: Path) -> str:
    try:
        return (state / "owner").read_text(encoding="ascii").strip() or "unknown"
    except OSError:
        return "unknown"
