"""Which outputs are there? One file each in this folder, with a name, a line of help and `render`.

An output is rendered from the journal once labelling has ended, whole or not at all, in the order of names. Some need
pictures that are written while a photo is open: `products` says which.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from app.labelling.view import View

DEFAULT: Final = ("csv", "annotated", "report")


class Output(Protocol):
    """A module of this folder."""

    HELP: str
    PRODUCTS: int

    def check(self) -> str | None:
        """Why this output cannot be written here, with what to do; None where it can."""
        ...

    def render(self, view: View, out: Path) -> Sequence[Path]:
        """Write it; returns the files or folders written, for the summary."""
        ...


def output_names() -> tuple[str, ...]:
    """Names of the outputs there are, as the command line takes them."""
    return tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))


def load_output(name: str) -> Output:
    """The module of one of `output_names`."""
    output: Output = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return output
