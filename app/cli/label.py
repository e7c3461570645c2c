"""Command `mien label`: its options, messages and exit codes."""

import logging
import math
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer

from mien.app.cli.exit_codes import FAILED, SOME_ERRORS, STOPPED, USAGE, stopped_by
from mien.app.cli.label_options import with_label_options
from mien.app.cli.options import DetectorName, Model, OnDevice, PriorName, fail
from mien.app.labeling.options import DEFAULT_OUTPUTS, LabelOptions
from mien.app.labeling.signals import Interrupts
from mien.app.wording import counted


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
            code = _label(options, settings, signals)
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
            raise
    raise typer.Exit(code)


def _label(options: LabelOptions, settings: dict[str, Any], signals: Interrupts) -> int:
    from rich.console import Console

    from mien.app.labeling.progress import reporter
    from mien.app.labeling.run import label as label_folders
    from mien.app.labeling.summary import print_summary
    from mien.app.settings import load_settings

    if options.dry_run:
        return _dry_run(options)
    with reporter(options, Console(stderr=True)) as report:
        outcome = label_folders(options, load_settings(**settings), report, signals)
    if not options.quiet:
        print_summary(outcome, Console())
    if outcome.stopped:
        return STOPPED
    return SOME_ERRORS if outcome.statuses.get("error") else 0


def _dry_run(options: LabelOptions) -> int:
    """Scan, and print inputs by kind, how many of them are labeled already, and files that cannot be read."""
    from mien.app.labeling.files import check_out
    from mien.app.labeling.journal import NoJournal, open_journal
    from mien.app.labeling.outputs import check_outputs, images_for
    from mien.app.labeling.scan import scan

    check_outputs(options.outputs)
    check_out(options.out)
    images = images_for(options.outputs or DEFAULT_OUTPUTS)
    kinds, failures, labeled = Counter[str](), Counter[str](), 0
    with ExitStack() as opened:
        journal = None
        with suppress(NoJournal):
            journal = opened.enter_context(closing(open_journal(options.out)))
        for item in scan(options):
            if item.failure is not None:
                failures[item.failure.reason] += 1
                continue
            kinds[item.kind] += 1
            labeled += journal is not None and journal.is_labeled(item, images)
    for kind, count in sorted(kinds.items()):
        number, _, noun = counted(count, kind).partition(" ")
        typer.echo(f"{number:>12} {noun}")
    for reason, count in sorted(failures.items()):
        typer.echo(f"{count:>12,} unreadable: {reason}")
    if labeled:
        typer.echo(f"{labeled:>12,} of these are labeled already")
    typer.echo("Nothing was written.")
    return 0


def _check_combinations(options: LabelOptions) -> None:
    if bool(options.inputs) == bool(options.files_from):
        fail("give either FOLDER... or --files-from.", USAGE)
    if options.null and not options.files_from:
        fail("--null needs --files-from.", USAGE)
    if options.per_second is not None and options.every is not None:
        fail("--every and --per-second cannot be combined.", USAGE)
    if not all(math.isfinite(value) for value in asdict(options).values() if isinstance(value, float)):
        fail("expected finite numbers.", USAGE)
    if options.end is not None and options.start >= options.end:
        fail("--start must be before --end.", USAGE)
    if options.ray_address is not None and options.engine != "ray":
        fail("--ray-address needs --engine ray.", USAGE)
