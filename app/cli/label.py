"""Command `mien label`: its signals, summary and exit codes; `app/labeling/options.py` has its options."""

import inspect
import logging
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, get_origin

import typer

from mien.app.cli.shared import (
    SOME_ERRORS,
    STOPPED,
    USAGE,
    DetectorName,
    Model,
    OnDevice,
    PriorName,
    fail,
)
from mien.app.errors import Stopped
from mien.app.labeling.options import LabelOptions
from mien.data.errors import MienError

if TYPE_CHECKING:
    from rich.console import Console

EXIT_CODES: Final = (
    "Exit codes: 0 all labeled; 1 could not run; 2 usage; 3 done, but some files have errors; 4 stopped, rerun the "
    "same command to resume; 5 the output folder is in use; 6 the disk is full."
)


class Interrupts:
    """Ctrl-C and SIGTERM: the first signal raises `Stopped`, a second one exits immediately."""

    def __init__(self) -> None:
        self.received: str | None = None

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        self.check()

    def check(self) -> None:
        """Raise `Stopped` after a signal; needed if the first exception was lost in a callback."""
        if self.received is not None:
            raise Stopped(self.received)

    @contextmanager
    def installed(self) -> Iterator[Self]:
        """Handle the signals of this process during the block, in the main thread."""
        before = {number: signal.signal(number, self.handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_face = partial(typer.Option, rich_help_panel="Faces")


def label(
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
    prior: PriorName = None,
    max_faces: Annotated[
        int | None,
        _face(min=1, max=1000, metavar="N", help="Label the N largest faces of an image (default: 200)."),
    ] = None,
    small_faces: Annotated[
        bool, _face("--small-faces", help="Search large photos at full size, which takes longer.")
    ] = False,
    **values: Any,
) -> None:
    """Label every face in folders of photos and in videos.

    \b
    mien label photos --out out                   table, annotated copies, report
    mien label photos --write xlsx,crops          other outputs
    mien label talk.mp4 --write video,episodes    the video with boxes; when each
                                                  person shows what

    Writes a table, annotated copies and a report to one folder.
    If it is stopped or killed, rerun the same command to resume.
    A file that cannot be read becomes a row with the reason.
    """  # noqa: D301  # The backspace keeps the lines.
    options = LabelOptions(**values)
    settings = {"model": model, "device": device, "detector": detector, "prior": prior, "max_faces": max_faces}
    settings["detection_tiles"] = "always" if small_faces else None
    _check_combinations(options)
    logging.basicConfig(level=logging.ERROR if options.quiet else logging.WARNING, format="mien: %(message)s")
    with Interrupts().installed() as signals:
        try:
            code = _label(options, settings, signals)
        except BaseException as error:
            if signals.received is None or isinstance(error, MienError | KeyboardInterrupt):
                raise
            # A native library may replace Stopped by another exception while it is imported.
            fail(f"stopped by {signals.received}. Rerun the same command to resume.", STOPPED)
    raise typer.Exit(code)


def _with_options(command: Any) -> None:
    """Give a command the options of a run before its own, which typer reads from its signature."""
    options = [
        option.replace(default=[]) if get_origin(option.annotation.__origin__) is list else option
        for option in inspect.signature(LabelOptions).parameters.values()
    ]
    own = [part for part in inspect.signature(command).parameters.values() if part.kind is not part.VAR_KEYWORD]
    parameters = [*options, *(part.replace(kind=part.KEYWORD_ONLY) for part in own)]
    command.__signature__ = inspect.Signature(parameters)
    command.__annotations__ = {part.name: part.annotation for part in parameters}


_with_options(label)


def _check_combinations(options: LabelOptions) -> None:
    if bool(options.inputs) == bool(options.files_from):
        fail("give either FOLDER... or --files-from.", USAGE)
    if options.per_second is not None and options.every is not None:
        fail("--every and --per-second cannot be combined.", USAGE)
    if not all(math.isfinite(value) for value in asdict(options).values() if isinstance(value, float)):
        fail("expected finite numbers.", USAGE)
    if options.end is not None and options.start >= options.end:
        fail("--start must be before --end.", USAGE)
    if options.ray_address is not None and options.engine != "ray":
        fail("--ray-address needs --engine ray.", USAGE)


def _label(options: LabelOptions, settings: dict[str, Any], signals: Interrupts) -> int:
    from rich.console import Console

    from mien.app.labeling.run import label as label_folders
    from mien.app.settings import InferenceSettings

    run = label_folders(options, InferenceSettings.load(**settings), signals.check)
    if "images" not in run:  # It was stopped before the journal was opened.
        signals.check()
    print_summary(run, Console(quiet=options.quiet), options.out)
    if run["stopped"]:
        return STOPPED
    return SOME_ERRORS if run["images"]["error"] else 0


def print_summary(run: dict[str, Any], console: "Console", out: Path) -> None:
    """Print the summary."""
    from rich.table import Table

    labels, faces = run["faces"], run["faces"].total()
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for name in run["settings"].get("labels", "").split():
        share = labels[name] / faces if faces else 0.0
        table.add_row(name, f"{labels[name]:,}", f"{share:.0%}", "\N{FULL BLOCK}" * round(share * 40))
    console.print(table)
    for line in _lines(run, faces, out):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _lines(run: dict[str, Any], faces: int, out: Path) -> Iterator[Any]:  # noqa: C901  # Each fact has its line.
    from rich.text import Text

    from mien.app.inference.records import NOTES
    from mien.app.labeling.inputs import counted, quoted
    from mien.data.quality import REASONS

    facts, statuses = run["settings"], run["images"]
    parts = [counted(run["photos"], "photo")] if run["photos"] or not run["frames"] else []
    parts += [f"{counted(run['frames'], 'frame')} of {counted(run['videos'], 'video')}"] if run["frames"] else []
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in run["skipped"].most_common())
    skipped = f"; {counted(statuses['skipped'], 'file')} skipped ({reasons})" if statuses["skipped"] else ""
    yield (
        f"\n{counted(faces, 'face')} in {' and '.join(parts)}; "
        f"{statuses['no_face']:,} without a face, {statuses['error']:,} with an error{skipped}"
    )
    for reason in REASONS:
        if count := run["reasons"][reason]:
            yield f"{count:,} of {counted(faces, 'face')} {'is' if count == 1 else 'are'} {reason}"
    for message, count in sorted(run["unsupported"].items()):
        yield f"{counted(count, 'file')}: {message}"
    for note, count in sorted(run["notes"].items()):
        yield f"{counted(count, 'image')}: {NOTES[note]}"
    if run["left"]:
        yield f"{counted(run['left'], 'file')} of the earlier run {'is' if run['left'] == 1 else 'are'} gone: removed"
    if run["reviewed"]:
        yield f"{run['reviewed']:,} of {counted(faces, 'face')} reviewed, {run['corrected']:,} of them corrected"
    if facts:
        yield f"detector {facts['detector']}, model {facts['model']} in {facts['precision']} on {facts['provider']}"
    if statuses["no_face"] and facts.get("detector") == "builtin":
        yield "YuNet finds more faces: run `mien models pull`, then this with --detector yunet and another --out"
    if run["labeled_now"] and run["seconds_labeling"]:
        spent = sum(run["stage_seconds"].values()) or 1e-9
        shares = ", ".join(f"{stage} {value / spent:.0%}" for stage, value in run["stage_seconds"].items())
        rate = run["labeled_now"] / run["seconds_labeling"]
        yield f"{rate:.1f} images/s with {counted(run['workers'], 'worker')}: {shares}"
    if run["stopped"]:
        yield Text(
            f"\nStopped by {run['stopped']}. Results so far are kept: rerun the same command to resume.", "yellow"
        )
    elif run["remaining"]:
        remain = "input remains" if run["remaining"] == 1 else "inputs remain"
        reached = "because --limit was reached: rerun the command to continue."
        yield Text(f"\n{run['remaining']:,} {remain}, {reached}", "yellow")
    yield from (f"  {out / name}" for name in run["outputs"])
    if faces:
        uncertain = f"{counted(run['uncertain'], 'uncertain face')}, " if run["uncertain"] else ""
        yield f"\nCorrect labels ({uncertain}least certain first): mien review {quoted(out)}"
