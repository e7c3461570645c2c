"""Options shared by the commands, and one-line error messages; fast to import."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated, Literal, NoReturn

import typer

from mien.app.cli.exit_codes import FAILED, error_line

WITH = "Model"  # heading of the help

Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="fast (default), accurate, or an artifact folder.", rich_help_panel=WITH),
]
PriorName = Annotated[
    Literal["natural", "balanced"] | None,
    typer.Option("--prior", help="balanced (default) corrects for rare expressions.", rich_help_panel=WITH),
]
OnDevice = Annotated[
    Literal["auto", "cpu", "cuda", "tensorrt"] | None,
    typer.Option(help="Where the model runs. Only auto falls back to the CPU.", rich_help_panel=WITH),
]
DetectorName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Face detector: auto, or one of `mien models list`.", rich_help_panel=WITH),
]


@contextlib.contextmanager
def printed_errors() -> Iterator[None]:
    """Print expected errors as one line and exit with status 1."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        from mien.data.errors import MienError

        if isinstance(error, MienError | OSError):
            fail(str(error), FAILED)
        raise


def fail(message: str, code: int) -> NoReturn:
    """Print one line to standard error and exit with a status code."""
    sys.stderr.write(error_line(message, code))
    raise SystemExit(code)
