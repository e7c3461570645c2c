"""Progress of a run on standard error: a progress bar, lines, or nothing."""

import contextlib
import math
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mien.app.labeling.options import LabelOptions
from mien.app.wording import counted


class Reporter:
    """Counts the events of a run silently; base class of reporters with output, which show progress at intervals."""

    every_s = math.inf

    def __init__(self) -> None:
        self.began = self._shown = time.monotonic()
        self.total = self.before = self.new = self.faces = self.errors = 0

    def say(self, message: str) -> None:
        """Print a message."""

    def scanned(self, count: int) -> None:
        """Report the number of inputs found so far."""

    def start(self, total: int, done: int) -> None:
        """Report the start of labeling; `done` of `total` are labeled already."""
        self.began = time.monotonic()
        self.total, self.before = total, done

    def expect(self, more: int) -> None:
        """Report the frames of a video."""
        self.total += more

    def labeled(self, images: int, faces: int, errors: int) -> None:
        """Report images that were labeled and committed together."""
        self.new += images
        self.faces += faces
        self.errors += errors
        if time.monotonic() - self._shown >= self.every_s:
            self._shown = time.monotonic()
            self.progress()

    def progress(self) -> None:
        """Report the counts so far."""

    def writing(self, output: str) -> None:
        """Report that an output is being written."""

    @property
    def rate(self) -> float:
        """Images per second, without those of earlier runs."""
        return self.new / max(1e-9, time.monotonic() - self.began)

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining time; None if unknown."""
        return max(0.0, (self.total - self.before - self.new) / self.rate) if self.new else None


class Lines(Reporter):
    """One line of progress every 30 seconds, for log files."""

    every_s = 30.0

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def say(self, message: str) -> None:
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def progress(self) -> None:
        done, left = self.before + self.new, self.seconds_left
        if done > self.total:  # with videos of unknown length
            left = None
        self.say(
            f"{done:,} of {max(done, self.total):,} images, {counted(self.faces, 'face')}, "
            f"{counted(self.errors, 'error')}, {self.rate:.1f} images/s"
            f"{'' if left is None else f', {left / 60:.0f} min left'}"
        )

    def writing(self, output: str) -> None:
        self.say(f"writing {output}")


class Bar(Lines):
    """A progress bar with images per second, faces, errors and the time left."""

    every_s = 0.0

    def __init__(self, console: Console, bar: Progress) -> None:
        super().__init__(console)
        self._bar = bar
        self._task = self._bar.add_task("looking for files", total=None, rate="-", faces="", errors="")

    def scanned(self, count: int) -> None:
        self._bar.update(self._task, description=f"looking for files: {count:,}")

    def start(self, total: int, done: int) -> None:
        super().start(total, done)
        self._bar.reset(self._task, total=total, completed=done, description="labeling")

    def expect(self, more: int) -> None:
        super().expect(more)
        self._bar.update(self._task, total=self.total)

    def progress(self) -> None:
        done, faces, errors = self.before + self.new, counted(self.faces, "face"), counted(self.errors, "error")
        self._bar.update(self._task, completed=done, rate=f"{self.rate:.1f}", faces=faces, errors=errors)

    def writing(self, output: str) -> None:
        self._bar.update(self._task, description=f"writing {output}")


@contextlib.contextmanager
def reporter(options: LabelOptions, console: Console) -> Iterator[Reporter]:
    """The reporter that the options choose."""
    if options.quiet:
        yield Reporter()
    elif not console.is_interactive:  # a file, or a terminal that cannot move its cursor
        yield Lines(console)
    else:
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]} images/s", style="cyan"),
            TextColumn("{task.fields[faces]}"),
            TextColumn("{task.fields[errors]}", style="red"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        ) as bar:
            yield Bar(console, bar)
