"""Flags and help of the options of `mien label`, by field of `LabelOptions`, which has their types and defaults."""

import dataclasses
import inspect
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final

import typer

from mien.app.cli.options import parse_folder
from mien.app.labeling.options import LabelOptions

# An option below each heading of the help
_input = partial(typer.Option, rich_help_panel="Inputs")
_output = partial(typer.Option, rich_help_panel="Outputs")
_run = partial(typer.Option, rich_help_panel="Run")
_message = partial(typer.Option, rich_help_panel="Messages")
_cluster = partial(typer.Option, rich_help_panel="Cluster")


def _names(values: list[str]) -> list[str]:
    names = list(dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip()))
    if values and not names:
        raise typer.BadParameter("no output is named")
    return names


def _patterns(values: list[str]) -> list[str]:
    r"""Patterns in the form of names in the outputs, in which bytes that are not UTF-8 are `\xNN`."""
    return [os.fsencode(value).decode("utf-8", "backslashreplace") for value in values]


def _seconds(text: str) -> float:
    """Parse seconds, or hours, minutes and seconds between colons."""
    try:
        parts = [float(part) for part in str(text).split(":")]
    except ValueError:
        parts = []
    seconds = sum(part * 60.0**power for power, part in enumerate(reversed(parts)))
    if not 0 < len(parts) <= 3 or min(parts) < 0 or math.isnan(seconds):
        raise typer.BadParameter(f"{text}: expected seconds, or a time such as 1:02:03.5")
    return seconds


_OPTIONS: Final[dict[str, Any]] = {
    "inputs": typer.Argument(metavar="FOLDER...", help="Folders, photos, videos, s3:// URLs."),
    "out": typer.Option(
        "--out",
        "-o",
        parser=parse_folder,
        metavar="FOLDER",
        help="New or empty folder for the results. Rerun with the same one to resume.",
    ),
    "files_from": _input(metavar="FILE", help="Read paths, one per line, from FILE or stdin (-)."),
    "null": _input("--null", "-0", help="Paths in --files-from are NUL-separated (find -print0)."),
    "recursive": _input(help="Enter subfolders."),
    "ignore": _input(metavar="PATTERN", callback=_patterns, help="Skip matching paths, such as '*.tif' or 'raw/*'."),
    "hidden": _input("--hidden", help="Include hidden files."),
    "every": _input(min=1, metavar="N", help="Every N-th video frame; 1: all."),
    "per_second": _input(min=0.001, metavar="N", help="N video frames per second; by default 2."),
    "start": _input(parser=_seconds, metavar="TIME", help="Begin videos here: seconds, or 1:02:03.5."),
    "end": _input(parser=_seconds, metavar="TIME", help="End videos before this time."),
    "whole": _input("--whole", help="Images are one face each, brow to chin with a margin, such as crops."),
    "outputs": _output("--write", "-w", metavar="NAME,...", callback=_names, help="Outputs, see --list-outputs."),
    "spreadsheet_safe": _output(
        "--spreadsheet-safe",
        help="Put an apostrophe before texts that a spreadsheet would run as a formula, and mark CSV as UTF-8.",
    ),
    "annotated_px": _output(min=64, help="Maximum long side of annotated copies, pixels."),
    "limit": _run(min=1, help="Label at most N more images."),
    "dry_run": _run("--dry-run", help="Count what would be labeled and write nothing."),
    "workers": _run(min=0, max=256, help="Threads; 0: one per core."),
    "quiet": _message("--quiet", "-q", help="Print errors only."),
    "engine": _cluster(help="ray: label on the machines of a cluster (extra `ray`)."),
    "ray_address": _cluster(metavar="HOST:PORT|auto", help="Existing cluster (default: start a local one)."),
}


_LAST: Final = ("engine", "ray_address")  # in the help


def with_label_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command with `**values` a parameter for every field of `LabelOptions`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    declared = [
        inspect.Parameter(
            field.name,
            keyword,
            default=field.default if field.default_factory is dataclasses.MISSING else field.default_factory(),
            annotation=Annotated[field.type, _OPTIONS[field.name]],
        )
        for field in dataclasses.fields(LabelOptions)
    ]
    own = [parameter for parameter in inspect.signature(command).parameters.values() if parameter.name != "values"]
    parameters = [*declared, *(parameter.replace(kind=keyword) for parameter in own)]
    parameters.sort(key=lambda parameter: parameter.name in _LAST)
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by Typer
    return command
