"""Output folder: used by one process, with clear errors, without touching files of others.

A folder with files is used only if an earlier run created it. In it, only the outputs that the journal names, and the
images of its inputs, are replaced or removed.
"""

import contextlib
import errno
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import IO, Any, Final
from urllib.parse import quote

import filelock

from mien.data.atomic import atomic_file
from mien.data.errors import MienError

STATE_DIR: Final = ".mien"
JOURNAL: Final = "journal.sqlite3"
RUN_FILE: Final = "run.json"
CORRECTIONS: Final = "corrections.jsonl"
FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
_SQLITE_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE)


class LabelingError(MienError):
    """Labeling cannot start or continue; the message says what to change."""


class NoInput(LabelingError):
    """An input that does not exist, or inputs without anything to label."""


class DiskFull(LabelingError):
    """The disk is full; committed results are kept."""

    exit_code = 6


class OutputLocked(LabelingError):
    """Another process is using the same output folder."""

    exit_code = 5


class OutputRefused(LabelingError):
    """The output folder cannot be written, or the journal in it cannot be used."""


class ForeignFile(LabelingError):
    """A file in the output folder was not written by an earlier run and would be replaced."""


class DamagedJournal(OutputRefused):
    """The journal is damaged."""

    def __init__(self, out: Path, what: object) -> None:
        super().__init__(
            f"journal in {out / STATE_DIR} is damaged ({what}). Nothing was changed. Restore it from a "
            "backup, or choose another --out."
        )


@contextlib.contextmanager
def disk_errors(out: Path) -> Iterator[None]:
    """Convert errors of the system or SQLite: "no space left" to DiskFull, others to OutputRefused."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise DiskFull(_full_message(out)) from error
        target = error.filename2 or error.filename or out  # the second one of a renaming
        raise OutputRefused(f"cannot write to {target}: {error.strerror or error}.") from error
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode in _SQLITE_FULL:
            raise DiskFull(_full_message(out)) from error
        if error.sqlite_errorcode == sqlite3.SQLITE_CANTOPEN and free_bytes(out) == 0:
            raise DiskFull(_full_message(out)) from error
        raise OutputRefused(f"journal in {out / STATE_DIR}: {error}.") from error
    except sqlite3.DatabaseError as error:
        raise DamagedJournal(out, error) from error


def _full_message(out: Path) -> str:
    return f"no space left for {out}. Committed results are kept: free some space and rerun the same command."


def free_bytes(out: Path) -> int:
    """Free space at `out`, or at its closest existing parent."""
    existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    return shutil.disk_usage(existing).free


def parts_dir(out: Path) -> Path:
    """Folder for temporary files; it is inside `out`, so renaming does not copy."""
    return out / STATE_DIR / "part"


def open_output(out: Path, target: str, mode: str = "w") -> contextlib.AbstractContextManager[IO[Any]]:
    """Open a file of an output, which replaces the old one at the end of the block. Raises: OSError."""
    return atomic_file(out / target, mode, staging=parts_dir(out))


def clear_parts(out: Path) -> None:
    """Remove temporary files of a killed run."""
    shutil.rmtree(parts_dir(out), ignore_errors=True)
    parts_dir(out).mkdir(parents=True, exist_ok=True)


def quoted(path: PurePath) -> str:
    """A path for a command that is suggested to the user, in the quotes of the system's shell."""
    return subprocess.list2cmdline([str(path)]) if os.name == "nt" else shlex.quote(str(path))


def foreign(path: Path) -> str:
    """Message about a file that was not written by a run."""
    return f"{path} exists, but was not written by an earlier run. Move it, or choose another --out."


def check_out(out: Path) -> None:
    """Check that an output folder is new, empty, or of an earlier run. Raises: ForeignFile, OutputRefused."""
    with disk_errors(out):
        if out.exists() and any(out.iterdir()) and not (out / STATE_DIR).is_dir():
            if (out / RUN_FILE).exists():
                raise ForeignFile(
                    f"{out} has outputs of an earlier run, but its journal, the folder {STATE_DIR}, is gone. Choose a "
                    "new folder with --out, or remove this one."
                )
            raise ForeignFile(
                f"{out} contains files that were not written by `mien label`. Choose a new or empty folder with --out."
            )


def sqlite_uri(path: PurePath) -> str:
    """A full path as a URI for SQLite: `file:///home/a`, `file:///C:/a`, or, on a share, `file:////nas/share/a`.

    `Path.as_uri` has the server of a share as the authority, `file://nas/share/a`, which SQLite refuses.
    """
    posix = path.as_posix()
    return f"file://{'' if posix.startswith('/') else '/'}{quote(os.fsencode(posix))}"


def owned_names(folder: Path) -> set[str]:
    """Names of the entries of a folder that runs of `mien label` have written there."""
    path = folder / STATE_DIR / JOURNAL
    if not path.exists():
        return {STATE_DIR}
    mode = "ro" if os.access(path.parent, os.W_OK) or os.path.exists(f"{path}-wal") else "ro&immutable=1"
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"{sqlite_uri(path.absolute())}?mode={mode}", uri=True)) as journal,
    ):
        row = journal.execute("SELECT value FROM settings WHERE key='targets'").fetchone()
        names = {target.split("/")[0] for target in json.loads(row[0])} if row else set[str]()
        return names | {STATE_DIR, RUN_FILE, CORRECTIONS}
    return {STATE_DIR}


@contextlib.contextmanager
def output_lock(out: Path) -> Iterator[None]:
    """Lock `out` for this process; the system releases the lock even if the process is killed.

    A folder that was created for inputs that do not exist is removed again.
    Raises: OutputLocked, naming the other process; DiskFull; OutputRefused, if the folder cannot be created.
    """
    state, is_new = out / STATE_DIR, not out.exists()
    lock = filelock.FileLock(state / "lock", timeout=1.0)  # until its owner has written its process id
    with disk_errors(out):
        state.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            owner = "unknown"
            with contextlib.suppress(OSError):
                owner = (state / "owner").read_text(encoding="ascii") or owner
            raise OutputLocked(
                f"{out} is in use by process {owner}: wait until it ends, or choose another --out."
            ) from error
        except (NotImplementedError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
                raise
            raise OutputRefused(
                f"the file system of {out} has no locks, as some network drives: choose an --out on a local disk."
            ) from error
    try:
        with contextlib.suppress(OSError):  # the process id is only for the message
            (state / "owner").write_text(str(os.getpid()), encoding="ascii")
        yield
    except NoInput:
        lock.release()
        if is_new:
            shutil.rmtree(state, ignore_errors=True)
            with contextlib.suppress(OSError):
                out.rmdir()
        raise
    finally:
        lock.release()
