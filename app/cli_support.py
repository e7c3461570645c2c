"""What do the commands share? Exit codes, the options that several take, and errors as one line. Light to import."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer

# Documented in docs/labelling.md
FAILED, USAGE, SOME_ERRORS, STOPPED, LOCKED, DISK_FULL = 1, 2, 3, 4, 5, 6
# Headings of the help
IN, OUTS, RUN, LOG, WITH, RAY = "Inputs", "Outputs", "Run", "Messages", "Model", "Past one machine"


class Device(StrEnum):
    """Where the model runs."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    tensorrt = "tensorrt"


class EngineName(StrEnum):
    """Where a folder is labelled."""

    local = "local"
    ray = "ray"


class Symlinks(StrEnum):
    """What is done with symbolic links."""

    files = "files"
    follow = "follow"
    skip = "skip"


Model = Annotated[
    Path | None, typer.Option(help="Artefact folder; the released default when not given.", rich_help_panel=WITH)
]
OnDevice = Annotated[
    Device | None,
    typer.Option(help="auto may fall back to the CPU, the others refuse to.", rich_help_panel=WITH),
]
DetectorName = Annotated[
    str | None, typer.Option(metavar="auto|yunet|haar", help="How faces are found.", rich_help_panel=WITH)
]


class spoken_errors:  # noqa: N801  # read as a statement
    """Print an error that was raised on purpose as one line, and leave with its exit code."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise SystemExit(130)
        if isinstance(error, Exception) and not isinstance(error, typer.Exit):
            from app.errors import MienError
            from models.manifest import ArtefactError

            if isinstance(error, MienError | ArtefactError | FileNotFoundError):
                fail(str(error), FAILED)


def fail(message: str, code: int) -> NoReturn:
    """Print one line to standard error and leave with an exit code."""
    sys.stderr.write(f"mien: {message}\n")
    raise SystemExit(code)
