"""Options of several commands, exit codes, and one-line error messages; fast to import."""

import sys
from typing import Annotated, Final, Literal, NoReturn

import typer

# Exit codes; those of errors are attributes of their classes, and docs/outputs.md lists all.
FAILED, USAGE, SOME_ERRORS, STOPPED = 1, 2, 3, 4
_PANEL: Final = "Model"

Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="fast (default), a release, or an artifact folder.", rich_help_panel=_PANEL),
]
PriorName = Annotated[
    Literal["natural", "balanced"] | None,
    typer.Option("--prior", help="balanced (default) corrects for rare expressions.", rich_help_panel=_PANEL),
]
OnDevice = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    typer.Option(help="Where the model runs. Only auto falls back to the CPU.", rich_help_panel=_PANEL),
]
DetectorName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Face detector: auto, or one of `mien models list`.", rich_help_panel=_PANEL),
]


def fail(message: str, code: int) -> NoReturn:
    """Print one line to standard error and exit with a status code."""
    sys.stderr.write(f"mien: {message}\n")
    raise SystemExit(code)
