"""Options of the program and of several commands, and one-line error messages; fast to import."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated, Final, Literal, NoReturn

import typer

from mien.app import VERSION

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


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"mien {VERSION}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Define the global options."""


@contextlib.contextmanager
def printed_errors() -> Iterator[None]:
    """Print expected errors as one line and exit with their code."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # Typer exits without a message, as after `| head`.
        raise
    except Exception as error:
        from mien.data.errors import MienError

        if isinstance(error, MienError | OSError):
            fail(str(error), error.exit_code if isinstance(error, MienError) else FAILED)
        raise


def fail(message: str, code: int) -> NoReturn:
    """Print one line to standard error and exit with a status code."""
    sys.stderr.write(f"mien: {message}\n")
    raise SystemExit(code)
