"""Command `mien label`, which collects its options in one `Request`."""

from pathlib import Path

import typer

from mien.app.cli import label_options as options
from mien.app.cli.exit_codes import USAGE
from mien.app.cli.options import DetectorName, Model, OnDevice, PriorName, fail
from mien.app.labeling.request import Request
from mien.app.labeling.signals import interrupts


def label(
    inputs: options.Inputs = None,
    out: options.Out = Path("out"),
    write: options.Write = None,
    list_outputs: options.ListOutputs = False,
    files_from: options.FilesFrom = None,
    null: options.Null = False,
    recursive: options.Recursive = True,
    ignore: options.Ignore = None,
    hidden: options.Hidden = False,
    symlinks: options.Links = "files",
    every: options.Every = 1,
    per_second: options.PerSecond = None,
    limit: options.Limit = None,
    dry_run: options.DryRun = False,
    check_hashes: options.CheckHashes = False,
    new_run: options.NewRun = False,
    annotated_px: options.AnnotatedPx = 1600,
    min_face: options.MinFace = 0,
    min_confidence: options.MinConfidence = 0,
    workers: options.Workers = 0,
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
    prior: PriorName = None,
    quiet: options.Quiet = False,
    json_log: options.JsonLog = False,
    engine: options.OnEngine = "local",
    ray_address: options.RayAddress = None,
    partition_files: options.PartitionFiles = None,
) -> None:
    """Label every face in folders of photos.

    Writes a table, annotated copies and a report to one folder.
    If it is stopped or killed, rerun the same command to resume.
    A file that cannot be read becomes a row with the reason.
    """
    if list_outputs:
        from mien.app.cli.label_run import print_outputs

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
    from mien.app.cli.label_run import run

    with interrupts() as signals:
        settings = {"model": model, "device": device, "detector": detector, "prior": prior}
        raise typer.Exit(run(request, settings, signals))
