"""Options of a run, each declared once for the command line and for every part of it."""

import math
import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

Engine = Literal["local", "ray"]

OUTPUT_NAMES: Final = ("csv", "jsonl", "xlsx", "coco", "annotated", "crops", "report", "episodes", "video")
DEFAULT_OUTPUTS: Final = ("csv", "annotated", "report")
FRAMES_PER_S: Final = 2.0  # Default of --per-second


def parse_folder(value: str) -> Path:
    """Parse a folder; an empty one, as from an unset shell variable, would be the current folder."""
    if not str(value):
        raise typer.BadParameter("the path is empty")
    return Path(value)


def _names(values: list[str]) -> list[str]:
    names = list(dict.fromkeys(name.strip() for value in values for name in value.split(",")))
    if unknown := [name for name in names if name not in OUTPUT_NAMES]:
        raise typer.BadParameter(f"{', '.join(unknown)}: expected one or more of {', '.join(OUTPUT_NAMES)}")
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
    if not 0 < len(parts) <= 3 or min(parts) < 0 or not math.isfinite(seconds):
        raise typer.BadParameter(f"{text}: expected seconds, or a time such as 1:02:03.5")
    return seconds


_input, _face, _output, _run, _cluster = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Inputs", "Faces", "Outputs", "Run", "Cluster")
)
_OUT: Final = "New or empty folder for the results. Rerun with the same one to resume."
_LIST: Final = "Read paths from FILE or stdin (-): one per line, or NUL-separated (find -print0)."
_IGNORE: Final = "Skip matching paths, such as '*.tif' or 'raw/*'."
_START: Final = "Begin videos here: seconds, or 1:02:03.5."
_WRITE: Final = f"Any of {', '.join(OUTPUT_NAMES)}; by default {', '.join(DEFAULT_OUTPUTS)}."
_WHOLE: Final = "Images are one face each, brow to chin with a margin, such as crops."
_RAY: Final = "ray: label on the machines of a cluster (extra `ray`)."
_ADDRESS: Final = "Existing cluster (default: start a local one)."


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """One call of `mien label`."""

    inputs: Annotated[list[str], typer.Argument(metavar="FOLDER...", help="Folders, photos, videos, s3:// URLs.")] = (
        field(default_factory=list)
    )
    out: Annotated[Path, typer.Option("--out", "-o", parser=parse_folder, metavar="FOLDER", help=_OUT)] = Path("out")

    files_from: Annotated[str | None, _input(metavar="FILE", help=_LIST)] = None
    ignore: Annotated[list[str], _input(metavar="PATTERN", callback=_patterns, help=_IGNORE)] = field(
        default_factory=list
    )
    every: Annotated[int | None, _input(min=1, metavar="N", help="Every N-th video frame; 1: all.")] = None
    per_second: Annotated[
        float | None, _input(min=0.001, metavar="N", help="N video frames per second; by default 2.")
    ] = None
    start: Annotated[float, _input(parser=_seconds, metavar="TIME", help=_START)] = 0.0
    end: Annotated[float | None, _input(parser=_seconds, metavar="TIME", help="End videos before this time.")] = None

    whole: Annotated[bool, _face("--whole", help=_WHOLE)] = False

    outputs: Annotated[list[str], _output("--write", "-w", metavar="NAME,...", callback=_names, help=_WRITE)] = field(
        default_factory=list
    )
    annotated_px: Annotated[int, _output(min=64, help="Maximum long side of annotated copies, pixels.")] = 1600

    limit: Annotated[int | None, _run(min=1, help="Label at most N more photos and videos.")] = None
    replace: Annotated[bool, _run("--replace", help="Remove the results of inputs that are not found.")] = False
    workers: Annotated[int, _run(min=0, max=256, help="Processes; 0: one per core.")] = 0
    quiet: Annotated[bool, _run("--quiet", "-q", help="Print errors only.")] = False

    engine: Annotated[Engine, _cluster(help=_RAY)] = "local"
    ray_address: Annotated[str | None, _cluster(metavar="HOST:PORT|auto", help=_ADDRESS)] = None

    @property
    def frames_per_s(self) -> float | None:
        """Frames of a video to label per second; None with `every`."""
        return FRAMES_PER_S if self.every is None and self.per_second is None else self.per_second

    @property
    def sampling(self) -> str:
        """Description of the video sampling."""
        frames = f"{self.frames_per_s:g} per second" if self.frames_per_s else f"every {self.every}"
        end = "" if self.end is None else f" to {self.end:g} s"
        part = f" from {self.start:g} s{end}" if self.start or end else ""
        return f"{frames}{part}"
