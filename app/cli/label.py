"""Command `mien label`: its progress, summary and exit codes; `app/labeling/options.py` has its options."""

import inspect
import logging
import math
import signal
import time
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
    printed_errors,
)
from mien.app.errors import Stopped
from mien.app.labeling.options import LabelOptions, Reporter

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
    with Interrupts().installed() as signals, printed_errors():
        from mien.data.errors import MienError

        try:
            code = _label(options, settings, signals)
        except (MienError, KeyboardInterrupt):
            raise
        except BaseException:
            # A native library may replace Stopped by another exception while it is imported.
            if signals.received is not None:
                fail(f"stopped by {signals.received}. Rerun the same command to resume.", STOPPED)
            raise
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


def _label(options: LabelOptions, settings: dict[str, Any], signals: Interrupts) -> int:
    from rich.console import Console

    from mien.app.labeling.run import label as label_folders
    from mien.app.settings import InferenceSettings

    with Progress(signals, Console(stderr=True, quiet=options.quiet)) as report:
        run = label_folders(options, InferenceSettings.load(**settings), report)
    if "images" not in run:  # It was stopped before the journal was opened.
        signals.check()
    print_summary(run, Console(quiet=options.quiet), options.out)
    if run["stopped"]:
        return STOPPED
    return SOME_ERRORS if run["images"]["error"] else 0


# Progress and summary


class Progress(Reporter):
    """Progress on standard error: a bar in a terminal, else a line every 30 seconds; nothing on a quiet console."""

    lines_s = 30.0

    def __init__(self, signals: Interrupts, console: "Console") -> None:
        from rich import progress

        self._signals, self._console = signals, console
        self.began = self._shown = time.monotonic()
        self.total = self.before = self.new = self.faces = self.errors = 0
        texts = ("{task.description}", "{task.fields[rate]} images/s", "{task.fields[faces]}")
        description, rate, faces = map(progress.TextColumn, texts)
        errors = progress.TextColumn("{task.fields[errors]}", style="red")
        done, left = progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
        columns = (description, progress.BarColumn(bar_width=None), done, rate, faces, errors, left)
        # Without one, it is a file, or a terminal that cannot move its cursor.
        self._has_bar = console.is_interactive and not console.quiet
        self._bar = progress.Progress(*columns, console=console, transient=True, disable=not self._has_bar)
        self._task = self._bar.add_task("looking for files", total=None, rate="-", faces="", errors="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def check(self) -> None:
        self._signals.check()

    def say(self, message: str) -> None:
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def scanned(self, count: int) -> None:
        self._bar.update(self._task, description=f"looking for files: {count:,}")

    def start(self, total: int, done: int) -> None:
        self.began, self.total, self.before = time.monotonic(), total, done
        self._bar.reset(self._task, total=total, completed=done, description="labeling")

    def expect(self, more: int) -> None:
        self.total += more
        self._bar.update(self._task, total=self.total)

    def labeled(self, images: int, faces: int, errors: int) -> None:
        from mien.app.labeling.inputs import counted

        self.new, self.faces, self.errors = self.new + images, self.faces + faces, self.errors + errors
        rate, done = self.new / max(1e-9, time.monotonic() - self.began), self.before + self.new
        found, failed = counted(self.faces, "face"), counted(self.errors, "error")
        self._bar.update(self._task, completed=done, rate=f"{rate:.1f}", faces=found, errors=failed)
        if not self._has_bar and time.monotonic() - self._shown >= self.lines_s:
            self._shown = time.monotonic()
            # The length of a video may be unknown.
            left = f", {(self.total - done) / rate / 60:.0f} min left" if self.new and done <= self.total else ""
            self.say(f"{done:,} of {max(done, self.total):,} images, {found}, {failed}, {rate:.1f} images/s{left}")

    def writing(self, output: str) -> None:
        if not self._has_bar:
            self.say(f"writing {output}")
        self._bar.update(self._task, description=f"writing {output}")


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
