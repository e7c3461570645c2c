"""What can be asked for on the command line? One program, `mien`; its parts are imported when they are called.

python -m app --help
"""

from pathlib import Path
from typing import Annotated

import typer

from app import VERSION
from app.cli_models import models
from app.cli_support import (
    FAILED,
    IN,
    LOG,
    OUTS,
    RAY,
    RUN,
    USAGE,
    DetectorName,
    EngineName,
    Model,
    OnDevice,
    Symlinks,
    fail,
    spoken_errors,
)

_EPILOG = "Labels name expressions as they look, not what people feel. Settings: the environment variables MIEN_*."
app = typer.Typer(
    name="mien",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
    help="Find the faces in photos and label their expressions, with calibrated probabilities.",
)
app.add_typer(models, name="models")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"mien {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold the options of the program itself."""


@app.command(
    epilog="Exit codes: 0 all labelled; 1 could not run; 2 usage; 3 done, but some files have errors; 4 stopped, go on "
    "with the same command; 5 the output is in use; 6 the disk is full."
)
def label(
    inputs: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER...", help="Folders, photos, videos, zip/tar files, patterns.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the results; also where a run goes on.")] = Path(
        "out"
    ),
    write: Annotated[
        list[str] | None,
        typer.Option(
            "--write",
            "-w",
            metavar="NAME,...",
            help="Outputs: see --list-outputs. (csv,annotated,report)",
            rich_help_panel=OUTS,
        ),
    ] = None,
    list_outputs: Annotated[
        bool, typer.Option("--list-outputs", help="List the outputs there are, and leave.", rich_help_panel=OUTS)
    ] = False,
    files_from: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Read names, one a line, from a file or - for standard input.", rich_help_panel=IN
        ),
    ] = None,
    null: Annotated[
        bool,
        typer.Option("--null", "-0", help="Names of --files-from end in NUL, as of find -print0.", rich_help_panel=IN),
    ] = False,
    recursive: Annotated[bool, typer.Option(help="Enter folders within folders.", rich_help_panel=IN)] = True,
    ignore: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Leave out what matches, such as '*.tif' or 'raw/*'.", rich_help_panel=IN),
    ] = None,
    hidden: Annotated[
        bool, typer.Option("--hidden", help="Take files whose names begin with a dot, too.", rich_help_panel=IN)
    ] = False,
    symlinks: Annotated[
        Symlinks, typer.Option(help="files: links to files; follow: to folders too; skip: none.", rich_help_panel=IN)
    ] = (Symlinks.files),
    every: Annotated[
        int, typer.Option(min=1, metavar="N", help="Of a video, take every N-th frame.", rich_help_panel=IN)
    ] = 1,
    per_second: Annotated[
        float | None,
        typer.Option(
            min=0.001, metavar="N", help="Of a video, take N frames per second of its time.", rich_help_panel=IN
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Label at most so many pictures in this call.", rich_help_panel=RUN)
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be labelled, and write nothing.", rich_help_panel=RUN)
    ] = False,
    check_hashes: Annotated[
        bool,
        typer.Option("--check-hashes", help="Notice changes that kept a file's size and time.", rich_help_panel=RUN),
    ] = False,
    annotated_px: Annotated[
        int, typer.Option(min=64, help="Long side of annotated copies at most, pixels.", rich_help_panel=OUTS)
    ] = 1600,
    workers: Annotated[int, typer.Option(min=0, max=256, help="Threads; 0: one per core.", rich_help_panel=RUN)] = 0,
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=LOG)] = False,
    json_log: Annotated[
        bool, typer.Option("--json-log", help="Log JSON lines to standard error; summary too.", rich_help_panel=LOG)
    ] = False,
    engine: Annotated[
        EngineName, typer.Option(help="ray: partitioned Parquet, on a cluster (extra `ray`).", rich_help_panel=RAY)
    ] = EngineName.local,
    ray_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT|auto", help="An existing cluster; else one is started.", rich_help_panel=RAY),
    ] = None,
    partition_files: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Files in each partition (256).", rich_help_panel=RAY)
    ] = None,
) -> None:
    """Label every face in folders of photos.

    Writes a table, annotated copies and a report into one folder.
    Stopped at any point, even killed, the same command goes on where it was.
    A file that cannot be read is a row with its reason.
    """
    if list_outputs:
        from app.labelling.command import print_outputs

        print_outputs()
        return
    if bool(inputs) == bool(files_from):
        fail("give either FOLDER... or --files-from.", USAGE)
    if per_second is not None and every != 1:
        fail("--every and --per-second exclude each other.", USAGE)
    from app.labelling.command import Call, run

    call = Call(
        inputs=tuple(inputs or ()),
        files_from=files_from,
        null=null,
        out=out,
        write=tuple(name.strip() for part in write or () for name in part.split(",") if name.strip()),
        recursive=recursive,
        ignore=tuple(ignore or ()),
        hidden=hidden,
        symlinks=symlinks.value,
        every=every,
        per_second=per_second,
        limit=limit,
        dry_run=dry_run,
        check_hashes=check_hashes,
        annotated_px=annotated_px,
        workers=workers,
        settings={"model": model, "device": device.value if device else None, "detector": detector},
        mode="json" if json_log else "quiet" if quiet else "bar",
        engine=engine.value,
        ray_address=ray_address,
        partition_files=partition_files,
    )
    raise typer.Exit(run(call))


@app.command()
def review(
    out: Annotated[Path, typer.Argument(help="Folder that `mien label` has written.")],
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the reviewed faces as a class-folder data set, and leave.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Export unreviewed faces too, with the model's label.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 8001,
) -> None:
    """Correct labels in the browser, and export them for training.

    The page is served to this machine only. Corrections are kept in corrections.jsonl, beside the predictions.
    """
    with spoken_errors():
        from app.labelling.review import serve_review, write_export

        if export is None:
            serve_review(out, port)
        else:
            typer.echo(write_export(out, export, everything=everything))


@app.command()
def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 when not given.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 8000 when not given.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that share the port.")] = None,
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
) -> None:
    """Answer uploads over HTTP: POST /v1/expressions; guide at /docs."""
    with spoken_errors():
        from app import server
        from app.settings import load_settings

        chosen = device.value if device else None
        server.run(load_settings(host=host, port=port, workers=workers, model=model, device=chosen, detector=detector))


@app.command()
def webcam(
    source: Annotated[
        str | None,
        typer.Option("--source", "-s", metavar="0|FILE|URL", help="Label a camera, video or stream here."),
    ] = None,
    write: Annotated[
        Path | None, typer.Option("--write", "-w", metavar="FILE.mp4", help="Write the annotated video of --source.")
    ] = None,
    window: Annotated[bool, typer.Option(help="Show --source in a window where there is a display.")] = True,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the page; 8000 or a free one.")] = None,
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
) -> None:
    """Read expressions live: a page with your camera, or --source in a window or the terminal.

    The page is served to this machine only. Nothing is stored but what --write asks for.
    """
    if write is not None and source is None:
        fail("--write needs --source.", USAGE)
    with spoken_errors():
        from app import webcam as live
        from app.pipeline import build_pipeline
        from app.settings import load_settings

        chosen = device.value if device else None
        settings = load_settings(port=port, model=model, device=chosen, detector=detector)
        if source is None:
            live.serve(settings, browser=browser)
        else:
            live.run(build_pipeline(settings), source, write=write, window=window)


@app.command()
def doctor(model: Model = None, device: OnDevice = None, detector: DetectorName = None) -> None:
    """Say what is installed, what really runs, and whether it is sound. Exit code 1 where something is off."""
    with spoken_errors():
        from app.doctor import examine

        chosen = device.value if device else None
        sound = examine({"model": model, "device": chosen, "detector": detector})
    raise typer.Exit(0 if sound else FAILED)


def main() -> None:
    """Run the program."""
    app()


if __name__ == "__main__":
    main()
