"""Command `mien label`: its options, messages and exit codes."""

import logging
import math
import sys
import traceback
from collections import Counter
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from typing import IO, Annotated, Any, Final

import typer

from mien.app.cli.exit_codes import FAILED, SOME_ERRORS, STOPPED, USAGE, stopped_by
from mien.app.cli.label_options import with_label_options
from mien.app.cli.options import DetectorName, Model, OnDevice, PriorName, fail
from mien.app.labeling.options import DEFAULT_OUTPUTS, LabelOptions
from mien.app.labeling.signals import Interrupts
from mien.app.wording import counted

# Typical sizes of an annotated copy of 1,600 pixels, and of the rows and thumbnails of an image
_COPY_BYTES: Final = 500_000
_ROW_BYTES: Final = 10_000
_KINDS: Final = {"file": "file", "zip": "zip archive", "tar": "tar archive", "video": "video"}


def _list_outputs(requested: bool) -> None:
    """List the outputs, one per line, with the default ones marked."""
    if not requested:
        return
    from mien.app.labeling.outputs import load_output, output_names

    for name in output_names():
        typer.echo(f"{'*' if name in DEFAULT_OUTPUTS else ' '} {name:<14} {load_output(name).HELP}")
    typer.echo("* written by default")
    raise typer.Exit


ListOutputs = Annotated[
    bool,
    typer.Option(
        "--list-outputs",
        callback=_list_outputs,
        is_eager=True,
        help="List the outputs and exit.",
        rich_help_panel="Outputs",
    ),
]


MaxFaces = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1000,
        metavar="N",
        help="Label the N largest faces of an image (default: 200).",
        rich_help_panel="Faces",
    ),
]
SmallFaces = Annotated[
    bool,
    typer.Option(
        "--small-faces", help="Search large photos at full size, which takes longer.", rich_help_panel="Faces"
    ),
]


@with_label_options
def label(
    list_outputs: ListOutputs = False,  # noqa: ARG001  # its callback acts
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
    prior: PriorName = None,
    max_faces: MaxFaces = None,
    small_faces: SmallFaces = False,
    **values: Any,
) -> None:
    """Label every face in folders of photos and in videos.

    \b
    mien label photos --out out                   table, annotated copies, report
    mien label photos --write xlsx,crops          other outputs
    mien label talk.mp4 --write video,episodes    the video with boxes; when each
                                                  person shows what
    mien label photos --dry-run                   what would be labeled

    Writes a table, annotated copies and a report to one folder.
    If it is stopped or killed, rerun the same command to resume.
    A file that cannot be read becomes a row with the reason.
    """  # noqa: D301  # a backspace, which keeps the lines
    options = LabelOptions(**values)
    _check_combinations(options)
    if options.outputs:
        from mien.app.labeling.outputs import output_names

        if unknown := [name for name in options.outputs if name not in output_names()]:
            fail(f"--write {','.join(unknown)}: expected one or more of {', '.join(output_names())}.", USAGE)
    from mien.app.labeling.progress import json_stderr
    from mien.data.errors import MienError

    settings: dict[str, Any] = {
        "model": model,
        "device": device,
        "detector": detector,
        "prior": prior,
        "max_faces": max_faces,
    }
    settings["detection_tiles"] = "always" if small_faces else None
    logging.basicConfig(level=logging.ERROR if options.quiet else logging.WARNING, format="mien: %(message)s")
    with Interrupts().installed() as signals:
        try:
            with json_stderr() if options.json_log else nullcontext() as stream:
                code = _label(options, settings, signals, stream)
        except KeyboardInterrupt:
            code = 130
        except MienError as error:
            fail(str(error), error.exit_code)
        except BaseException as error:
            # not only Stopped: a native library may replace it by another exception during its import
            if signals.received is not None:
                fail(stopped_by(signals.received), STOPPED)
            if isinstance(error, OSError):  # of a full disk to which the output is redirected
                fail(str(error), FAILED)
            if not options.json_log:
                raise
            fail(traceback.format_exc(), FAILED)
    raise typer.Exit(code)


def _label(options: LabelOptions, settings: dict[str, Any], signals: Interrupts, stream: IO[str] | None) -> int:
    from rich.console import Console

    from mien.app.labeling.progress import JsonLog, reporter
    from mien.app.labeling.run import label as label_folders
    from mien.app.labeling.summary import print_summary, summary_facts
    from mien.app.settings import load_settings

    if options.dry_run:
        return _dry_run(options, stream)
    with reporter(options, Console(stderr=True), stream) as report:
        outcome = label_folders(options, load_settings(**settings), report, signals)
    if options.json_log:
        JsonLog(stream).log("summary", **summary_facts(outcome))
    elif not options.quiet:
        print_summary(outcome, Console())
    if outcome.stopped:
        return STOPPED
    return SOME_ERRORS if outcome.statuses.get("error") else 0


@dataclass
class _Plan:
    """What a run would find and label."""

    kinds: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    bytes: int = 0
    labeled: int = 0
    to_label: int = 0
    video_frames: int = 0
    unknown_videos: int = 0
    disk_bytes: int = 0
    free_bytes: int = 0


def _plan(options: LabelOptions) -> _Plan:
    """Scan only: inputs by kind, files that cannot be read, and the disk space needed."""
    from mien.app.labeling.containers import expected_frames
    from mien.app.labeling.face_file import read_face_file
    from mien.app.labeling.files import check_out, free_bytes
    from mien.app.labeling.images import ANNOTATED
    from mien.app.labeling.journal import NoJournal, open_journal
    from mien.app.labeling.outputs import check_outputs, images_for
    from mien.app.labeling.scan import scan
    from mien.app.labeling.store import is_url

    check_outputs(options.outputs)
    check_out(options.out)
    if options.boxes is not None:
        read_face_file(options.boxes)
    plan, left = _Plan(free_bytes=free_bytes(options.out)), options.limit or sys.maxsize
    copy_bytes = _COPY_BYTES * options.annotated_px**2 // 1600**2
    images_to_write = images_for(options.outputs or DEFAULT_OUTPUTS)
    copies = images_to_write & ANNOTATED
    with ExitStack() as opened:
        journal = None
        if not options.new_run:
            with suppress(NoJournal):
                journal = opened.enter_context(closing(open_journal(options.out)))
        for item in scan(options):
            plan.bytes += item.size
            if item.failure is not None:
                plan.failures[item.failure.reason] += 1
                continue
            plan.kinds[item.kind] += 1
            if journal is not None and journal.is_labeled(item, images_to_write):
                plan.labeled += 1
                continue
            is_video = item.kind == "video"
            images = 1 if not is_video else 0 if is_url(item.path) else expected_frames(item.path, options)
            plan.unknown_videos += images == 0
            images = min(images, left - plan.to_label)
            plan.to_label += images
            plan.video_frames += images * is_video
            packed = item.kind in ("zip", "tar")
            copied = copy_bytes if is_video else item.size if packed else min(item.size, copy_bytes)
            plan.disk_bytes += images * (_ROW_BYTES + (copied if copies else 0))
    return plan


def _dry_run(options: LabelOptions, stream: IO[str] | None) -> int:
    from mien.app.labeling.progress import JsonLog

    plan = _plan(options)
    if options.json_log:
        JsonLog(stream).log("dry_run", **vars(plan))
        return 0
    for kind, count in sorted(plan.kinds.items()):
        number, _, noun = counted(count, _KINDS[kind]).partition(" ")
        every = " (2 per second; --every 1: all)" if options.samples_by_default else ""
        frames = plan.video_frames if kind == "video" else 0
        sampled = f", about {counted(frames, 'frame')}{every}" if frames else ""
        typer.echo(f"{number:>12} {noun}{sampled}")
    for reason, count in sorted(plan.failures.items()):
        typer.echo(f"{count:>12,} unreadable: {reason}")
    if plan.labeled:
        typer.echo(f"{plan.labeled:>12,} of these are labeled already")
    if options.limit:
        others = "of the others " if plan.labeled else ""
        typer.echo(f"{plan.to_label:>12,} {others}are labeled in this run (--limit)")
    typer.echo(f"{plan.bytes / 1e6:>12,.1f} MB in total")
    videos = f", without {counted(plan.unknown_videos, 'video')} of unknown length" if plan.unknown_videos else ""
    free_mb = plan.free_bytes / 1e6
    typer.echo(f"{plan.disk_bytes / 1e6:>12,.1f} MB needed for the results, about{videos}; {free_mb:,.1f} MB free.")
    typer.echo("Nothing was written.")
    return 0


def _check_combinations(options: LabelOptions) -> None:
    if bool(options.inputs) == bool(options.files_from):
        fail("give either FOLDER... or --files-from.", USAGE)
    if options.null and not options.files_from:
        fail("--null needs --files-from.", USAGE)
    if (options.per_second is not None) + (options.every is not None) + options.scenes > 1:
        fail("--every, --per-second and --scenes cannot be combined.", USAGE)
    if not all(math.isfinite(value) for value in asdict(options).values() if isinstance(value, float)):
        fail("expected finite numbers.", USAGE)
    if options.end is not None and options.start >= options.end:
        fail("--start must be before --end.", USAGE)
    if options.ray_address is not None and options.engine != "ray":
        fail("--ray-address needs --engine ray.", USAGE)
    if options.aligned + options.whole + (options.boxes is not None) > 1:
        fail("--aligned, --whole and --boxes cannot be combined.", USAGE)
