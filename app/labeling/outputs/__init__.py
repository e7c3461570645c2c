"""Outputs: one module each in this folder, with `HELP` and `render`.

An output is rendered from the journal after labeling, atomically, sorted by name. Some outputs need images that are
written during labeling; these are listed in `PRODUCTS`.
"""

import importlib
import os
import pkgutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from mien.app.labeling.files import LabelingError
from mien.app.labeling.journal import View
from mien.app.labeling.output_folder import OutputFolder


class Output(Protocol):
    """A module of this folder: a line of help, and the files and folders that it writes.

    Where it needs them, it also has `PRODUCTS`, `check() -> str | None`, which says why it cannot be written here, and
    `render(view, folder)`, which writes it.
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


def write_output(name: str, view: View, folder: OutputFolder) -> tuple[str, ...]:
    """Write an output. Returns: its files and folders. Raises: ForeignFile, OSError, DamagedJournal."""
    output = load_output(name)
    if render := getattr(output, "render", None):
        render(view, folder)
    return output.TARGETS


def obstacle(name: str) -> str | None:
    """Message on why an output cannot be written; None if it can."""
    check = getattr(load_output(name), "check", None)
    return None if check is None else check()


def check_outputs(names: Iterable[str]) -> None:
    """Reject outputs that do not exist or cannot be written. Raises: LabelingError."""
    asked = tuple(names)
    for name in asked:
        if name not in output_names():
            raise LabelingError(f"output {name!r}: expected one or more of {', '.join(output_names())}.")
        if (reason := obstacle(name)) is not None:
            raise LabelingError(reason)
    if "classes" in asked and "class-links" in asked:
        raise LabelingError("outputs classes and class-links write to the same folder: choose one.")


def products_of(names: Iterable[str]) -> int:
    """Bit mask of the images that outputs need."""
    products = 0
    for name in names:
        products |= getattr(load_output(name), "PRODUCTS", 0)
    return products


def with_earlier(asked: tuple[str, ...], earlier: Iterable[str], out: Path) -> tuple[str, ...]:
    """Requested outputs, and existing ones of earlier runs, which would become outdated otherwise."""
    names = list(asked)
    for name in earlier:
        targets = load_output(name).TARGETS if name in output_names() else ()
        shares = {target for one in names for target in load_output(one).TARGETS} & set(targets)
        if name not in names and not shares and obstacle(name) is None and targets:
            names += [name] if all(os.path.lexists(out / target) for target in targets) else []
    return tuple(names)
