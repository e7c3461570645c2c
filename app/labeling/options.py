"""Options of `mien label`: declared once, filled by the command line, and passed to every part of a run."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

Engine = Literal["local", "ray"]
Symlinks = Literal["files", "follow", "skip"]

# Headings of the help
_IN, _OUT, _RUN, _LOG, _RAY = "Inputs", "Outputs", "Run", "Messages", "Cluster"

DEFAULT_OUTPUTS: Final = ("csv", "annotated", "report")
RAY_OUTPUTS: Final = ("parquet",)
# Limits for one image of a local collection: they admit large scans, but not decompression bombs.
MAX_BYTES: Final = 1_000_000_000
MAX_PIXELS: Final = 250_000_000


def folder(value: str) -> Path:
    """Parse a folder; an empty one, as from an unset shell variable, would be the current folder."""
    if not str(value):
        raise typer.BadParameter("the path is empty")
    return Path(value)


def _names(values: list[str]) -> list[str]:
    return list(dict.fromkeys(name.strip() for value in values for name in value.split(",") if name.strip()))


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
        str | None,
        typer.Option(metavar="FILE", help="Read paths, one per line, from FILE or stdin (-).", rich_help_panel=_IN),
    ] = None
    null: Annotated[
        bool,
        typer.Option(
            "--null", "-0", help="Paths in --files-from are NUL-separated (find -print0).", rich_help_panel=_IN
        ),
    ] = False
    recursive: Annotated[bool, typer.Option(help="Enter subfolders.", rich_help_panel=_IN)] = True
    ignore: Annotated[
        list[str],
        typer.Option(metavar="PATTERN", help="Skip matching paths, such as '*.tif' or 'raw/*'.", rich_help_panel=_IN),
    ] = field(default_factory=list)
    hidden: Annotated[bool, typer.Option("--hidden", help="Include hidden files.", rich_help_panel=_IN)] = False
    symlinks: Annotated[
        Symlinks, typer.Option(help="files: links to files; follow: to folders, too; skip: none.", rich_help_panel=_IN)
    ] = "files"
    every: Annotated[int, typer.Option(min=1, metavar="N", help="Every N-th video frame.", rich_help_panel=_IN)] = 1
    per_second: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="N video frames per second.", rich_help_panel=_IN)
    ] = None
    scenes: Annotated[
        bool, typer.Option("--scenes", help="The first video frame of every scene.", rich_help_panel=_IN)
    ] = False

    outputs: Annotated[
        list[str],
        typer.Option(
            "--write",
            "-w",
            metavar="NAME,...",
            callback=_names,
            help="Outputs, see --list-outputs.",
            rich_help_panel=_OUT,
        ),
    ] = field(default_factory=list)
    spreadsheet_safe: Annotated[
        bool,
        typer.Option(
            "--spreadsheet-safe",
            help="Put an apostrophe before texts that a spreadsheet would run as a formula.",
            rich_help_panel=_OUT,
        ),
    ] = False
    annotated_px: Annotated[
        int, typer.Option(min=64, help="Maximum long side of annotated copies, pixels.", rich_help_panel=_OUT)
    ] = 1600
    min_face_px: Annotated[
        float, typer.Option("--min-face", min=0, metavar="PX", help="Ignore smaller faces.", rich_help_panel=_OUT)
    ] = 0
    min_confidence: Annotated[
        float, typer.Option(min=0, max=1, metavar="P", help="Ignore less confident faces.", rich_help_panel=_OUT)
    ] = 0

    limit: Annotated[int | None, typer.Option(min=1, help="Label at most N more images.", rich_help_panel=_RUN)] = None
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be labeled and write nothing.", rich_help_panel=_RUN)
    ] = False
    check_hashes: Annotated[
        bool,
        typer.Option(
            "--check-hashes", help="Hash all files to find changes with unchanged size and time.", rich_help_panel=_RUN
        ),
    ] = False
    new_run: Annotated[
        bool,
        typer.Option("--new-run", help="Start over with other settings; keeps the old journal.", rich_help_panel=_RUN),
    ] = False
    workers: Annotated[int, typer.Option(min=0, max=256, help="Threads; 0: one per core.", rich_help_panel=_RUN)] = 0

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=_LOG)] = False
    json_log: Annotated[
        bool, typer.Option("--json-log", help="Log JSON lines to stderr, including the summary.", rich_help_panel=_LOG)
    ] = False

    engine: Annotated[
        Engine, typer.Option(help="ray: partitioned Parquet, on a cluster (extra `ray`).", rich_help_panel=_RAY)
    ] = "local"
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto", help="Existing cluster (default: start a local one).", rich_help_panel=_RAY
        ),
    ] = None
    partition_files: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Files per partition (256).", rich_help_panel=_RAY)
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
