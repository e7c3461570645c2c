"""Outputs: one module each in this folder, with `HELP`, `TARGETS` and `render`.

An output is rendered from the journal after labeling, atomically, sorted by name. Some outputs need images that are
written during labeling; these are listed in `IMAGES`.
"""

import contextlib
import importlib.util
import os
import pkgutil
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import reduce
from operator import or_
from pathlib import Path
from typing import IO, Any, Protocol

from mien.app.labeling.files import (
    ForeignFile,
    LabelingError,
    disk_errors,
    foreign,
    output_lock,
    parts_dir,
)
from mien.app.labeling.journal import Journal
from mien.data.atomic import atomic_file


class Output(Protocol):
    """A module of this folder: a line of help, and the files and folders that it writes.

    Where it needs them, it also has `IMAGES`, `NEEDS`, a library that may not be installed, `render(journal)`, and
    `REVIEWED`, if it shows decisions of the review.
    """

    HELP: str
    TARGETS: tuple[str, ...]


def output_names() -> tuple[str, ...]:
    """Names of all outputs for the command line."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def load_output(name: str) -> Output:
    """Import the module of an output."""
    output: Output = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return output


def open_output(journal: Journal, target: str, mode: str = "w") -> AbstractContextManager[IO[Any]]:
    """Open a file of an output, which replaces the old one at the end of the block. Raises: OSError."""
    return atomic_file(journal.out / target, mode, staging=parts_dir(journal.out))


def write_entries(file: IO[str], entries: Iterable[str]) -> None:
    """Write the entries of a JSON array or object, one per line."""
    for number, entry in enumerate(entries):
        file.write((",\n" if number else "\n") + entry)


def write_output(name: str, journal: Journal) -> list[Path]:
    """Write an output. Returns: its files and folders. Raises: ForeignFile, OSError."""
    output = load_output(name)
    if render := getattr(output, "render", None):
        render(journal)
    return [journal.out / target for target in output.TARGETS]


def unavailable_reason(name: str) -> str | None:
    """Message on why an output cannot be written; None if it can."""
    library = getattr(load_output(name), "NEEDS", None)
    if library is None or importlib.util.find_spec(library):
        return None
    return f"output {name}: {library} is not installed. Run `pip install {library}`, or choose csv or jsonl."


def check_outputs(names: list[str]) -> None:
    """Reject outputs that cannot be written. Raises: LabelingError."""
    for name in names:
        if (reason := unavailable_reason(name)) is not None:
            raise LabelingError(reason)


def images_for(names: Iterable[str]) -> int:
    """Bit mask of the images that outputs need."""
    return reduce(or_, (getattr(load_output(name), "IMAGES", 0) for name in names), 0)


def targets_of(names: Iterable[str]) -> set[str]:
    """Files and folders of outputs; of names of another version, none."""
    return {target for name in names if name in output_names() for target in load_output(name).TARGETS}


def record_outputs(names: list[str], journal: Journal) -> None:
    """Store the outputs that this folder gets, so that they are known as its own.

    Raises: ForeignFile, if a file that no run has written has the name of an output.
    """
    targets: list[str] = journal.settings.get("targets", [])
    for target in sorted(targets_of(names).difference(targets)):
        path = journal.out / target
        if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
            raise ForeignFile(foreign(path))
    outputs = dict.fromkeys([*journal.settings.get("outputs", []), *names])
    journal.put(outputs=list(outputs), targets=sorted(targets_of(names).union(targets)))


def update_outputs(out: Path, *names: str) -> list[Path]:
    """Write outputs anew, outside of a run: these, or the existing ones that show decisions of the review.

    Returns: its files. Raises: LabelingError.
    """
    # like a run, which keeps files of others
    with output_lock(out), disk_errors(out), contextlib.closing(Journal(out)) as journal:
        record_outputs(list(names), journal)
        existing = (
            name
            for name in journal.settings["outputs"]
            if any((out / target).exists() for target in targets_of([name]))
        )
        chosen = names or [
            name
            for name in existing
            if getattr(load_output(name), "REVIEWED", False) and unavailable_reason(name) is None
        ]
        return [path for name in chosen for path in write_output(name, journal)]
