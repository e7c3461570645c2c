"""Who is told how a run goes? A bar for people, JSON lines for schedulers, or nobody; always on standard error."""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.progress import TimeRemainingColumn as TimeLeft
from rich.text import Text

from app.labelling.records import PictureRecord

Mode = Literal["bar", "json", "quiet"]
_LOG_EVERY_S: Final = 5.0


class Reporter(Protocol):
    """Receives what happens during a run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def say(self, message: str, **facts: Any) -> None:
        """Tell something that is worth a line."""
        ...

    def scanned(self, count: int) -> None:
        """So many inputs have been found so far."""
        ...

    def start(self, total: int, done: int) -> None:
        """Labelling begins; `done` of `total` were done in an earlier run."""
        ...

    def expect(self, more: int) -> None:
        """A container brought so many more pictures than were known."""
        ...

    def picture(self, record: PictureRecord) -> None:
        """One picture is labelled and committed."""
        ...

    def partition(self, files: int, faces: int, errors: Sequence[tuple[str, str, str]]) -> None:
        """So many files are labelled and committed together; of each error file, reason and message."""
        ...

    def writing(self, output: str) -> None:
        """An output is being rendered."""
        ...


class Quiet:
    """Says nothing but what the caller prints at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, message: str, **facts: Any) -> None:
        """Nothing."""

    def scanned(self, count: int) -> None:
        """Nothing."""

    def start(self, total: int, done: int) -> None:
        """Nothing."""

    def expect(self, more: int) -> None:
        """Nothing."""

    def picture(self, record: PictureRecord) -> None:
        """Nothing."""

    def partition(self, files: int, faces: int, errors: Sequence[tuple[str, str, str]]) -> None:
        """Nothing."""

    def writing(self, output: str) -> None:
        """Nothing."""


class JsonLog(Quiet):
    """One JSON object a line: events, each error, and the state of things every five seconds."""

    def __init__(self) -> None:
        """Start the clock."""
        self._began = self._logged = time.monotonic()
        self._total = self._done = self._new = self._faces = self._errors = 0

    def say(self, message: str, **facts: Any) -> None:
        """Log an event."""
        self._log("message", message=message, **facts)

    def start(self, total: int, done: int) -> None:
        """Log the beginning."""
        self._began = time.monotonic()
        self._total, self._done = total, done
        self._log("start", total=total, done=done)

    def expect(self, more: int) -> None:
        """Count it."""
        self._total += more

    def picture(self, record: PictureRecord) -> None:
        """Log an error at once, progress now and then."""
        self._new += 1
        self._faces += len(record.faces)
        if record.status == "error" and record.failure is not None:
            self._error(record.item.name, record.failure.reason, record.failure.message)
        self._now_and_then()

    def partition(self, files: int, faces: int, errors: Sequence[tuple[str, str, str]]) -> None:
        """Log its errors, and progress now and then."""
        self._new += files
        self._faces += faces
        for error in errors:
            self._error(*error)
        self._now_and_then()

    def _error(self, name: str, reason: str, message: str) -> None:
        self._errors += 1
        self._log("error", file=name, reason=reason, error=message)

    def _now_and_then(self) -> None:
        if time.monotonic() - self._logged >= _LOG_EVERY_S:
            self._logged = time.monotonic()
            self._progress()

    def writing(self, output: str) -> None:
        """Log which output is written."""
        self._log("writing", output=output)

    def _progress(self) -> None:
        rate = self._new / max(1e-9, time.monotonic() - self._began)
        done = self._done + self._new
        left = (self._total - done) / rate if rate else None
        self._log(
            "progress",
            done=done,
            total=max(done, self._total),
            faces=self._faces,
            errors=self._errors,
            images_per_s=round(rate, 1),
            seconds_left=None if left is None else round(max(0.0, left)),
        )

    def _log(self, event: str, **facts: Any) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        sys.stderr.write(json.dumps({"time": stamp, "event": event} | facts, ensure_ascii=False) + "\n")
        sys.stderr.flush()


class _Rate(ProgressColumn):
    """Pictures per second of this run, without those that were done before."""

    def render(self, task: Task) -> Text:
        """The rate as text."""
        new = task.fields.get("new", 0)
        elapsed = task.elapsed or 0.0
        return Text(f"{new / elapsed:.1f} images/s" if elapsed > 0 and new else "- images/s", style="cyan")


class Bar:
    """A progress bar with images per second, faces, errors and the time left."""

    def __init__(self, console: Console) -> None:
        """Draw on this console."""
        self._console = console
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            _Rate(),
            TextColumn("{task.fields[faces]} faces"),
            TextColumn("{task.fields[errors]} errors", style="red"),
            TimeLeft(),
            console=console,
            transient=True,
            disable=not console.is_terminal,  # a log file needs no bar
        )
        self._task: TaskID = self._bar.add_task("looking for files", total=None, faces=0, errors=0, new=0)
        self._new = self._faces = self._errors = 0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, message: str, **facts: Any) -> None:
        """Print above the bar."""
        self._console.print(message, highlight=False, markup=False, soft_wrap=True)

    def scanned(self, count: int) -> None:
        """Show how many were found."""
        self._bar.update(self._task, description=f"looking for files: {count:,}")

    def start(self, total: int, done: int) -> None:
        """Begin anew, with a known total."""
        self._bar.reset(self._task, total=total, completed=done, description="labelling", faces=0, errors=0, new=0)

    def expect(self, more: int) -> None:
        """Grow the total."""
        self._bar.update(self._task, total=(self._bar.tasks[0].total or 0) + more)

    def picture(self, record: PictureRecord) -> None:
        """Advance by one."""
        self._new += 1
        self._faces += len(record.faces)
        self._errors += record.status == "error"
        self._advance(1)

    def partition(self, files: int, faces: int, errors: Sequence[tuple[str, str, str]]) -> None:
        """Advance by many."""
        self._new += files
        self._faces += faces
        self._errors += len(errors)
        self._advance(files)

    def _advance(self, files: int) -> None:
        self._bar.update(self._task, advance=files, faces=self._faces, errors=self._errors, new=self._new)

    def writing(self, output: str) -> None:
        """Say what is written."""
        self._bar.update(self._task, description=f"writing {output}")


def reporter(mode: Mode, console: Console) -> Reporter:
    """The reporter of a mode."""
    if mode == "json":
        return JsonLog()
    return Bar(console) if mode == "bar" else Quiet()
