"""Options of `mien label`: declared once, filled by the command line, and passed to every part of a run."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

Engine = Literal["local", "ray"]
Symlinks = Literal["files", "follow", "skip"]

# An option below each heading of the help
_input = partial(typer.Option, rich_help_panel="Inputs")
_output = partial(typer.Option, rich_help_panel="Outputs")
_run = partial(typer.Option, rich_help_panel="Run")
_message = partial(typer.Option, rich_help_panel="Messages")
_cluster = partial(typer.Option, rich_help_panel="Cluster")

DEFAULT_OUTPUTS: Final = ("csv", "annotated", "report")
# Limits for one image of a local collection: they admit large scans, but not decompression bombs.
MAX_BYTES: Final = 1_000_000_000
MAX_PIXELS: Final = 250_000_000


def folder(value: str) -> Path:
    """Parse a folder; an empty one, as from an unset shell variable, would be the current folder."""
    if not str(value):
        raise typer.BadParameter("the path is empty")
    return Path(value)


def _names(values: list[str]) -> list[str]:
    names = list(dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip()))
    if values and not names:
        raise typer.BadParameter("no output is named")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelOptions:
    """One call of `mien label`; the help of an option is its documentation."""

    inputs: Annotated[
        list[str],
        typer.Argument(metavar="FOLDER...", help="Folders, photos, videos, zip/tar files, patterns, s3:// URLs."),
    ] = field(default_factory=list)
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            parser=folder,
            metavar="FOLDER",
            help="New or empty folder for the results. Rerun with the same one to resume.",
        ),
    ] = Path("out")

    files_from: Annotated[
        str | None, _input(metavar="FILE", help="Read paths, one per line, from FILE or stdin (-).")
    ] = None
    null: Annotated[bool, _input("--null", "-0", help="Paths in --files-from are NUL-separated (find -print0).")] = (
        False
    )
    recursive: Annotated[bool, _input(help="Enter subfolders.")] = True
    ignore: Annotated[list[str], _input(metavar="PATTERN", help="Skip matching paths, such as '*.tif' or 'raw/*'.")] = (
        field(default_factory=list)
    )
    hidden: Annotated[bool, _input("--hidden", help="Include hidden files.")] = False
    symlinks: Annotated[Symlinks, _input(help="files: links to files; follow: to folders, too; skip: none.")] = "files"
    every: Annotated[int, _input(min=1, metavar="N", help="Every N-th video frame.")] = 1
    per_second: Annotated[float | None, _input(min=0.001, metavar="N", help="N video frames per second.")] = None
    scenes: Annotated[bool, _input("--scenes", help="The first video frame of every scene.")] = False

    outputs: Annotated[
        list[str], _output("--write", "-w", metavar="NAME,...", callback=_names, help="Outputs, see --list-outputs.")
    ] = field(default_factory=list)
    spreadsheet_safe: Annotated[
        bool,
        _output(
            "--spreadsheet-safe",
            help="Put an apostrophe before texts that a spreadsheet would run as a formula, and mark CSV as UTF-8.",
        ),
    ] = False
    annotated_px: Annotated[int, _output(min=64, help="Maximum long side of annotated copies, pixels.")] = 1600
    min_face_px: Annotated[float, _output("--min-face", min=0, metavar="PX", help="Ignore smaller faces.")] = 0
    min_confidence: Annotated[float, _output(min=0, max=1, metavar="P", help="Ignore less confident faces.")] = 0

    limit: Annotated[int | None, _run(min=1, help="Label at most N more images.")] = None
    dry_run: Annotated[bool, _run("--dry-run", help="Count what would be labeled and write nothing.")] = False
    check_hashes: Annotated[
        bool, _run("--check-hashes", help="Hash all files to find changes with unchanged size and time.")
    ] = False
    new_run: Annotated[bool, _run("--new-run", help="Start over with other settings; keeps the old journal.")] = False
    workers: Annotated[int, _run(min=0, max=256, help="Threads; 0: one per core.")] = 0

    quiet: Annotated[bool, _message("--quiet", "-q", help="Print errors only.")] = False
    json_log: Annotated[bool, _message("--json-log", help="Log JSON lines to stderr, including the summary.")] = False

    engine: Annotated[Engine, _cluster(help="ray: label on the machines of a cluster (extra `ray`).")] = "local"
    ray_address: Annotated[
        str | None, _cluster(metavar="HOST:PORT|auto", help="Existing cluster (default: start a local one).")
    ] = None

    @property
    def sampling(self) -> str:
        """Description of the video sampling; part of the signature of a video."""
        if self.scenes:
            return "scenes"
        return f"{self.per_second:g} per second" if self.per_second else f"every {self.every}"

    @property
    def selection(self) -> str:
        """Description of the selection of members; part of the signature of an archive."""
        return f"{'hidden ' if self.hidden else ''}{' '.join(self.ignore)}"

    @property
    def drawing(self) -> str:
        """Description of the options for written images."""
        return f"{self.annotated_px} px, faces from {self.min_face_px:g} px and {self.min_confidence:g}"
