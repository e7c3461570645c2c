"""The outputs: one file each in this folder, with a line of help and `render`.

An output is rendered from the journal once labeling has ended, whole or not at all, in the order of names. Some need
pictures that are written while a photo is open: `PRODUCTS` says which.
"""

import importlib
import os
import pkgutil
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from app.labeling.files import LabelingError, OutputFolder
from app.labeling.journal import View


class Output(Protocol):
    """A module of this folder. A function `check` says why it cannot be written here, where that may be."""

    HELP: str
    PRODUCTS: int
    TARGETS: tuple[str, ...]

    def render(self, view: View, folder: OutputFolder) -> None:
        """Write it."""
        ...


def output_names() -> tuple[str, ...]:
    """Names of the outputs there are, as the command line takes them."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def load_output(name: str) -> Output:
    """The module of one of `output_names`."""
    output: Output = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return output


def obstacle(name: str) -> str | None:
    """Why an output cannot be written here, with what to do; None where it can."""
    check = getattr(load_output(name), "check", None)
    return None if check is None else check()


def check_outputs(names: Iterable[str]) -> None:
    """Refuse outputs that do not exist or cannot be written here. Raises: LabelingError."""
    asked = tuple(names)
    for name in asked:
        if name not in output_names():
            raise LabelingError(f"output {name!r}: expected one or several of {', '.join(output_names())}.")
        if (reason := obstacle(name)) is not None:
            raise LabelingError(reason)
    if "classes" in asked and "class-links" in asked:
        raise LabelingError("outputs classes and class-links fill the same folder: choose one.")


def products_of(names: Iterable[str]) -> int:
    """Bits of the pictures that outputs need."""
    products = 0
    for name in names:
        products |= load_output(name).PRODUCTS
    return products


def with_earlier(asked: tuple[str, ...], earlier: Iterable[str], out: Path) -> tuple[str, ...]:
    """The outputs asked for, and those written before that are still there: these would go stale otherwise."""
    names = list(asked)
    for name in earlier:
        targets = load_output(name).TARGETS if name in output_names() else ()
        shares = {target for one in names for target in load_output(one).TARGETS} & set(targets)
        if name not in names and not shares and obstacle(name) is None and targets:
            names += [name] if all(os.path.lexists(out / target) for target in targets) else []
    return tuple(names)
