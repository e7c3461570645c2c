"""Progress of a run on standard error: a progress bar, lines, JSON lines, or nothing."""

import contextlib
import json
import math
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mien.app.labeling.options import LabelOptions
from mien.app.wording import counted

Error = tuple[str, str | None, str | None]


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
        """Report additional images in a container."""
        self.total += more

    def labeled(self, images: int, faces: int, errors: Sequence[Error]) -> None:
        """Report images that were labeled and committed together, with file, reason and message of each error."""
        self.new += images
        self.faces += faces
        self.errors += len(errors)
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


class JsonLog(Reporter):
    """One JSON object per line: events, each error, and progress every five seconds."""

    every_s = 5.0

    def __init__(self, stream: IO[str] | None = None) -> None:
        """Write to a stream, by default standard error."""
        super().__init__()
        self._stream = stream

    def log(self, event: str, **facts: Any) -> None:
        """Write one line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        stream = self._stream or sys.stderr
        stream.write(json.dumps({"time": stamp, "event": event} | facts, ensure_ascii=False) + "\n")
        stream.flush()

    def say(self, message: str) -> None:
        self.log("message", message=message)

    def start(self, total: int, done: int) -> None:
        super().start(total, done)
        self.log("start", total=total, done=done)

    def labeled(self, images: int, faces: int, errors: Sequence[Error]) -> None:
        for name, reason, message in errors:
            self.log("error", file=name, reason=reason, error=message)
        super().labeled(images, faces, errors)

    def progress(self) -> None:
        done, left = self.before + self.new, self.seconds_left
        self.log(
            "progress",
            done=done,
            total=max(done, self.total),
            faces=self.faces,
            errors=self.errors,
            images_per_s=round(self.rate, 1),
            seconds_left=None if left is None else round(left),
        )

    def writing(self, output: str) -> None:
        self.log("writing", output=output)


@contextlib.contextmanager
def json_stderr() -> Iterator[IO[str]]:
    """Wrap every line that is printed to standard error; yields a stream for JSON lines, which are not wrapped.

    FFmpeg, OpenCV, libpng and Ray write to the file descriptor, so the descriptor is redirected.
    """
    is_replaced = sys.stderr is not sys.__stderr__  # by a test
    if is_replaced:
        yield sys.stderr
        return
    sys.stderr.flush()
    real, (source, sink) = os.dup(2), os.pipe()
    with os.fdopen(real, "w", encoding="utf-8") as stream:
        os.dup2(sink, 2)
        os.close(sink)
        thread = threading.Thread(target=_wrap, args=(source, stream), daemon=True)
        thread.start()
        try:
            yield stream
        finally:
            sys.stderr.flush()
            os.dup2(stream.fileno(), 2)  # closes the last writer of the pipe: the thread ends
            thread.join(timeout=5)


def _wrap(source: int, stream: IO[str]) -> None:
    with os.fdopen(source, encoding="utf-8", errors="backslashreplace") as lines:
        for line in lines:
            if text := line.strip():
                stream.write(json.dumps({"event": "message", "message": text}, ensure_ascii=False) + "\n")
                stream.flush()


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
        if done > self.total:  # of an archive, whose number of images is not known
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
def reporter(options: LabelOptions, console: Console, stream: IO[str] | None = None) -> Iterator[Reporter]:
    """The reporter that the options choose; JSON lines are written to `stream`."""
    if options.json_log:
        yield JsonLog(stream)
    elif options.quiet:
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
