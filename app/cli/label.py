"""Command `mien label`: its options, collected in one `Request`."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.exit_codes import USAGE
from app.cli.options import IN, LOG, OUTS, RAY, RUN, DetectorName, Model, OnDevice, PriorName, fail, folder
from app.labeling.request import Engine, Request, Symlinks
from app.labeling.signals import interrupts


def label(
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER...", help="Folders, photos, videos, zip/tar files, patterns.")
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            parser=folder,
            metavar="FOLDER",
            help="Folder for the results. Rerun with the same one to resume.",
        ),
    ] = Path("out"),
    write: Annotated[
        list[str] | None,
        typer.Option("--write", "-w", metavar="NAME,...", help="Outputs, see --list-outputs.", rich_help_panel=OUTS),
    ] = None,
    list_outputs: Annotated[
        bool, typer.Option("--list-outputs", help="List the outputs and exit.", rich_help_panel=OUTS)
    ] = False,
    files_from: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read paths, one per line, from FILE or stdin (-).", rich_help_panel=IN),
    ] = None,
    null: Annotated[
        bool,
        typer.Option(
            "--null", "-0", help="Paths in --files-from are NUL-separated (find -print0).", rich_help_panel=IN
        ),
    ] = False,
    recursive: Annotated[bool, typer.Option(help="Enter subfolders.", rich_help_panel=IN)] = True,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Skip matching paths, such as '*.tif' or 'raw/*'.", rich_help_panel=IN),
    ] = None,
    hidden: Annotated[bool, typer.Option("--hidden", help="Include hidden files.", rich_help_panel=IN)] = False,
    symlinks: Annotated[
        Symlinks, typer.Option(help="files: links to files; follow: to folders, too; skip: none.", rich_help_panel=IN)
    ] = "files",
    every: Annotated[int, typer.Option(min=1, metavar="N", help="Every N-th video frame.", rich_help_panel=IN)] = 1,
    per_second: Annotated[
        float | None, typer.Option(min=0.001, metavar="N", help="N video frames per second.", rich_help_panel=IN)
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Label at most N more images.", rich_help_panel=RUN)] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be labeled and write nothing.", rich_help_panel=RUN)
    ] = False,
    check_hashes: Annotated[
        bool,
        typer.Option(
            "--check-hashes", help="Hash all files to find changes with unchanged size and time.", rich_help_panel=RUN
        ),
    ] = False,
    new_run: Annotated[
        bool,
        typer.Option("--new-run", help="Start over with other settings; keeps the old journal.", rich_help_panel=RUN),
    ] = False,
    annotated_px: Annotated[
        int, typer.Option(min=64, help="Maximum long side of annotated copies, pixels.", rich_help_panel=OUTS)
    ] = 1600,
    min_face: Annotated[
        float, typer.Option(min=0, metavar="PX", help="Leave out smaller faces.", rich_help_panel=OUTS)
    ] = 0,
    min_confidence: Annotated[
        float,
        typer.Option(min=0, max=1, metavar="P", help="Leave out faces with a lower confidence.", rich_help_panel=OUTS),
    ] = 0,
    workers: Annotated[int, typer.Option(min=0, max=256, help="Threads; 0: one per core.", rich_help_panel=RUN)] = 0,
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
    prior: PriorName = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=LOG)] = False,
    json_log: Annotated[
        bool, typer.Option("--json-log", help="Log JSON lines to stderr, including the summary.", rich_help_panel=LOG)
    ] = False,
    engine: Annotated[
        Engine, typer.Option(help="ray: partitioned Parquet, on a cluster (extra `ray`).", rich_help_panel=RAY)
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto", help="Existing cluster (default: start a local one).", rich_help_panel=RAY
        ),
    ] = None,
    partition_files: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Files per partition (256).", rich_help_panel=RAY)
    ] = None,
) -> None:
    """Label every face in folders of photos.

    Writes a table, annotated copies and a report to one folder.
    If it is stopped or killed, rerun the same command to resume.
    A file that cannot be read becomes a row with the reason.
    """
    if list_outputs:
        from app.cli.label_run import print_outputs

        print_outputs()
        return
    if bool(inputs) == bool(files_from):
        fail("give either FOLDER... or --files-from.", USAGE)
    if per_second is not None and every != 1:
        fail("--every and --per-second cannot be combined.", USAGE)
    request = Request(
        out=out,
        inputs=tuple(inputs or ()),
        files_from=files_from,
        null=null,
        outputs=tuple(name.strip() for part in write or () for name in part.split(",") if name.strip()),
        recursive=recursive,
        ignore=tuple(ignore or ()),
        hidden=hidden,
        symlinks=symlinks,
        every=every,
        per_second=per_second,
        limit=limit,
        dry_run=dry_run,
        check_hashes=check_hashes,
        new_run=new_run,
        annotated_px=annotated_px,
        min_face_px=min_face,
        min_confidence=min_confidence,
        workers=workers,
        messages="json" if json_log else "quiet" if quiet else "bar",
        engine=engine,
        ray_address=ray_address,
        partition_files=partition_files,
    )
    from app.cli.label_run import run

    with interrupts() as signals:
        settings = {"model": model, "device": device, "detector": detector, "prior": prior}
        raise typer.Exit(run(request, settings, signals))
