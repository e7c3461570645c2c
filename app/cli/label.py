"""Command `mien label`: its options, messages and exit codes."""

import logging
import math
import os
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from mien.app.cli.shared import (
    FAILED,
    SOME_ERRORS,
    STOPPED,
    USAGE,
    DetectorName,
    Model,
    OnDevice,
    PriorName,
    fail,
    parse_folder,
)
from mien.app.labeling.options import DEFAULT_OUTPUTS, Engine, LabelOptions
from mien.app.labeling.signals import Interrupts
from mien.app.wording import counted

EXIT_CODES: Final = (
    "Exit codes: 0 all labeled; 1 could not run; 2 usage; 3 done, but some files have errors; 4 stopped, rerun the "
    "same command to resume; 5 the output folder is in use; 6 the disk is full."
)
_DEFAULT: Final = LabelOptions()
# Headings of the help
_INPUTS, _FACES, _OUTPUTS, _RUN, _CLUSTER = "Inputs", "Faces", "Outputs", "Run", "Cluster"


def _list_outputs(requested: bool) -> None:
    """List the outputs, one per line, with the default ones marked."""
    if not requested:
        return
    from mien.app.labeling.outputs import OUTPUTS

    for name, output in OUTPUTS.items():
        typer.echo(f"{'*' if name in DEFAULT_OUTPUTS else ' '} {name:<10} {output.help}")
    typer.echo("* written by default")
    raise typer.Exit


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
    if not 0 < len(parts) <= 3 or min(parts) < 0 or not math.isfinite(seconds):
        raise typer.BadParameter(f"{text}: expected seconds, or a time such as 1:02:03.5")
    return seconds


def label(
    inputs: Annotated[
        list[str], typer.Argument(metavar="FOLDER...", help="Folders, photos, videos, s3:// URLs.")
    ] = _DEFAULT.inputs,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            parser=parse_folder,
            metavar="FOLDER",
            help="New or empty folder for the results. Rerun with the same one to resume.",
        ),
    ] = _DEFAULT.out,
    files_from: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Read paths, one per line, from FILE or stdin (-).", rich_help_panel=_INPUTS),
    ] = _DEFAULT.files_from,
    null: Annotated[
        bool,
        typer.Option(
            "--null", "-0", help="Paths in --files-from are NUL-separated (find -print0).", rich_help_panel=_INPUTS
        ),
    ] = _DEFAULT.null,
    recursive: Annotated[bool, typer.Option(help="Enter subfolders.", rich_help_panel=_INPUTS)] = _DEFAULT.recursive,
    ignore: Annotated[
        list[str],
        typer.Option(
            metavar="PATTERN",
            callback=_patterns,
            help="Skip matching paths, such as '*.tif' or 'raw/*'.",
            rich_help_panel=_INPUTS,
        ),
    ] = _DEFAULT.ignore,
    hidden: Annotated[
        bool, typer.Option("--hidden", help="Include hidden files.", rich_help_panel=_INPUTS)
    ] = _DEFAULT.hidden,
    every: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Every N-th video frame; 1: all.", rich_help_panel=_INPUTS)
    ] = _DEFAULT.every,
    per_second: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="N", help="N video frames per second; by default 2.", rich_help_panel=_INPUTS),
    ] = _DEFAULT.per_second,
    start: Annotated[
        float,
        typer.Option(
            parser=_seconds, metavar="TIME", help="Begin videos here: seconds, or 1:02:03.5.", rich_help_panel=_INPUTS
        ),
    ] = _DEFAULT.start,
    end: Annotated[
        float | None,
        typer.Option(parser=_seconds, metavar="TIME", help="End videos before this time.", rich_help_panel=_INPUTS),
    ] = _DEFAULT.end,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            help="Images are one face each, brow to chin with a margin, such as crops.",
            rich_help_panel=_FACES,
        ),
    ] = _DEFAULT.whole,
    max_faces: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            metavar="N",
            help="Label the N largest faces of an image (default: 200).",
            rich_help_panel=_FACES,
        ),
    ] = None,
    small_faces: Annotated[
        bool,
        typer.Option(
            "--small-faces", help="Search large photos at full size, which takes longer.", rich_help_panel=_FACES
        ),
    ] = False,
    outputs: Annotated[
        list[str],
        typer.Option(
            "--write",
            "-w",
            metavar="NAME,...",
            callback=_names,
            help="Outputs, see --list-outputs.",
            rich_help_panel=_OUTPUTS,
        ),
    ] = _DEFAULT.outputs,
    spreadsheet_safe: Annotated[
        bool,
        typer.Option(
            "--spreadsheet-safe",
            help="Put an apostrophe before texts that a spreadsheet would run as a formula, and mark CSV as UTF-8.",
            rich_help_panel=_OUTPUTS,
        ),
    ] = _DEFAULT.spreadsheet_safe,
    annotated_px: Annotated[
        int, typer.Option(min=64, help="Maximum long side of annotated copies, pixels.", rich_help_panel=_OUTPUTS)
    ] = _DEFAULT.annotated_px,
    list_outputs: Annotated[  # its callback acts
        bool,
        typer.Option(
            "--list-outputs",
            callback=_list_outputs,
            is_eager=True,
            help="List the outputs and exit.",
            rich_help_panel=_OUTPUTS,
        ),
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Label at most N more photos and videos.", rich_help_panel=_RUN)
    ] = _DEFAULT.limit,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what would be labeled and write nothing.", rich_help_panel=_RUN)
    ] = _DEFAULT.dry_run,
    add: Annotated[
        bool,
        typer.Option("--add", help="Keep the results of other inputs in --out, and add these.", rich_help_panel=_RUN),
    ] = _DEFAULT.add,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Remove the results of inputs that are not found.", rich_help_panel=_RUN),
    ] = _DEFAULT.replace,
    workers: Annotated[
        int, typer.Option(min=0, max=256, help="Processes; 0: one per core.", rich_help_panel=_RUN)
    ] = _DEFAULT.workers,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print errors only.", rich_help_panel=_RUN)
    ] = _DEFAULT.quiet,
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
    prior: PriorName = None,
    engine: Annotated[
        Engine,
        typer.Option(help="ray: label on the machines of a cluster (extra `ray`).", rich_help_panel=_CLUSTER),
    ] = _DEFAULT.engine,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT|auto", help="Existing cluster (default: start a local one).", rich_help_panel=_CLUSTER
        ),
    ] = _DEFAULT.ray_address,
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
    values = dict(locals())
    options = LabelOptions(**{option.name: values[option.name] for option in fields(LabelOptions)})
    settings = {name: values[name] for name in ("model", "device", "detector", "prior", "max_faces")}
    settings["detection_tiles"] = "always" if small_faces else None
    _check_combinations(options)
    from mien.data.errors import MienError

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
                fail(_stopped_by(signals.received), STOPPED)
            if isinstance(error, OSError):  # of a full disk to which the output is redirected
                fail(str(error), FAILED)
            raise
    raise typer.Exit(code)


def _stopped_by(name: str) -> str:
    return f"stopped by {name}. Rerun the same command to resume."


def _label(options: LabelOptions, settings: dict[str, Any], signals: Interrupts) -> int:
    from rich.console import Console

    from mien.app.labeling.outputs import OUTPUTS
    from mien.app.labeling.progress import reporter
    from mien.app.labeling.run import label as label_folders
    from mien.app.labeling.summary import print_summary
    from mien.app.settings import InferenceSettings

    if unknown := [name for name in options.outputs if name not in OUTPUTS]:
        fail(f"--write {','.join(unknown)}: expected one or more of {', '.join(OUTPUTS)}.", USAGE)
    if options.dry_run:
        return _dry_run(options)
    with reporter(options, Console(stderr=True)) as report:
        run = label_folders(options, InferenceSettings.load(**settings), report, signals)
    if not options.quiet:
        print_summary(run, Console(), options.out)
    if run["stopped"]:
        return STOPPED
    return SOME_ERRORS if run["images"]["error"] else 0


def _dry_run(options: LabelOptions) -> int:
    """Find the inputs, and print their numbers, how many are labeled already, and those that cannot be read."""
    from mien.app.labeling.files import check_out
    from mien.app.labeling.inputs import walk
    from mien.app.labeling.journal import NoJournal, open_journal
    from mien.app.labeling.outputs import check_outputs

    check_outputs(options.outputs)
    check_out(options.out)
    kinds, failures, labeled = Counter[str](), Counter[str](), 0
    with ExitStack() as opened:
        journal = None
        with suppress(NoJournal):
            journal = opened.enter_context(closing(open_journal(options.out)))
        for item in walk(options, journal.settings.get("inputs") if journal else None):
            if item.failure is not None:
                failures[item.failure.reason] += 1
                continue
            kinds["video" if item.is_video else "photo"] += 1
            labeled += journal is not None and journal.is_labeled(item)
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
