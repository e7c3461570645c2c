"""Options of `mien label`, by their group in the help."""

from pathlib import Path
from typing import Annotated

import typer

from mien.app.cli.options import IN, LOG, OUTS, RAY, RUN, folder
from mien.app.labeling.request import Engine, Symlinks

Inputs = Annotated[
    list[str] | None, typer.Argument(metavar="FOLDER...", help="Folders, photos, videos, zip/tar files, patterns.")
]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        "-o",
        parser=folder,
        metavar="FOLDER",
        help="Folder for the results. Rerun with the same one to resume.",
    ),
]

FilesFrom = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Read paths, one per line, from FILE or stdin (-).", rich_help_panel=IN),
]
Null = Annotated[
    bool,
    typer.Option("--null", "-0", help="Paths in --files-from are NUL-separated (find -print0).", rich_help_panel=IN),
]
Recursive = Annotated[bool, typer.Option(help="Enter subfolders.", rich_help_panel=IN)]
Ignore = Annotated[
    list[str] | None,
    typer.Option(metavar="PATTERN", help="Skip matching paths, such as '*.tif' or 'raw/*'.", rich_help_panel=IN),
]
Hidden = Annotated[bool, typer.Option("--hidden", help="Include hidden files.", rich_help_panel=IN)]
Links = Annotated[
    Symlinks, typer.Option(help="files: links to files; follow: to folders, too; skip: none.", rich_help_panel=IN)
]
Every = Annotated[int, typer.Option(min=1, metavar="N", help="Every N-th video frame.", rich_help_panel=IN)]
PerSecond = Annotated[
    float | None, typer.Option(min=0.001, metavar="N", help="N video frames per second.", rich_help_panel=IN)
]

Write = Annotated[
    list[str] | None,
    typer.Option("--write", "-w", metavar="NAME,...", help="Outputs, see --list-outputs.", rich_help_panel=OUTS),
]
ListOutputs = Annotated[bool, typer.Option("--list-outputs", help="List the outputs and exit.", rich_help_panel=OUTS)]
AnnotatedPx = Annotated[
    int, typer.Option(min=64, help="Maximum long side of annotated copies, pixels.", rich_help_panel=OUTS)
]
MinFace = Annotated[float, typer.Option(min=0, metavar="PX", help="Leave out smaller faces.", rich_help_panel=OUTS)]
MinConfidence = Annotated[
    float,
    typer.Option(min=0, max=1, metavar="P", help="Leave out faces with a lower confidence.", rich_help_panel=OUTS),
]

Limit = Annotated[int | None, typer.Option(min=1, help="Label at most N more images.", rich_help_panel=RUN)]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Count what would be labeled and write nothing.", rich_help_panel=RUN)
]
CheckHashes = Annotated[
    bool,
    typer.Option(
        "--check-hashes", help="Hash all files to find changes with unchanged size and time.", rich_help_panel=RUN
    ),
]
NewRun = Annotated[
    bool, typer.Option("--new-run", help="Start over with other settings; keeps the old journal.", rich_help_panel=RUN)
]
Workers = Annotated[int, typer.Option(min=0, max=256, help="Threads; 0: one per core.", rich_help_panel=RUN)]

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=LOG)]
JsonLog = Annotated[
    bool, typer.Option("--json-log", help="Log JSON lines to stderr, including the summary.", rich_help_panel=LOG)
]

OnEngine = Annotated[
    Engine, typer.Option(help="ray: partitioned Parquet, on a cluster (extra `ray`).", rich_help_panel=RAY)
]
RayAddress = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT|auto", help="Existing cluster (default: start a local one).", rich_help_panel=RAY),
]
PartitionFiles = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Files per partition (256).", rich_help_panel=RAY)
]
