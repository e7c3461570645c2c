"""Views of the labeled frames of a video: a window, a table, lines of text, a file."""

import csv
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import av
import cv2
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mien.app.inference.drawing import annotate
from mien.app.inference.episodes import COLUMNS, Episode, Episodes, values_of
from mien.app.inference.records import Face, Photo
from mien.app.inference.video_writer import VideoWriter
from mien.app.inference.wording import label_text, percent
from mien.app.live.video import Frame, SourceUnavailable
from mien.data.contract import Array
from mien.data.contract.palette import hex_color

_ESCAPE: Final = 27
_BAR: Final = 20
_MIN_LISTED: Final = 0.05
FORMATS: Final = {".mp4": "mp4", ".mov": "mov", ".mkv": "matroska"}  # of FFmpeg, by the end of a name


@dataclass(frozen=True)
class Moment:
    """One labeled frame; the rate is the recent number of frames per second."""

    frame: Frame
    photo: Photo
    rate: float
    unsmoothed: tuple[Face, ...] = ()  # the same faces with the probabilities of this frame alone

    @cached_property
    def drawn(self) -> Array:
        """The frame with its faces drawn in, (H, W, 3) uint8 RGB."""
        return annotate(self.frame.pixels, self.photo)


class View(Protocol):
    """Interface of a view."""

    def show(self, moment: Moment) -> bool:
        """Show one moment. Returns: whether to continue."""

    def close(self, *, complete: bool) -> None:
        """Finish; `complete` is False if the run ended with an error."""
        return


class TableView:
    """A table in the terminal, updated in place, with one row per person."""

    def __init__(self, console: Console, name: str) -> None:
        self._name = name
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()

    def show(self, moment: Moment) -> bool:
        """Update the table."""
        self._live.update(self.table(moment))
        return True

    def table(self, moment: Moment) -> Table:
        """The faces as a table. Columns have fixed widths, so that nothing moves when a label changes."""
        caption = (
            f"{moment.frame.time_s:.1f} s, {moment.rate:.1f} frames/s. Press Ctrl-C to stop. Expressions, not feelings."
        )
        table = Table(title=self._name, caption=caption, expand=True)
        table.add_column("Person", width=6, justify="right")
        table.add_column("Expression", width=len("uncertain (happiness >99%)"), no_wrap=True)
        table.add_column("", width=_BAR, no_wrap=True)
        table.add_column("Next", ratio=1, no_wrap=True, overflow="ellipsis")
        for face in moment.photo.faces:
            ranked = sorted(face.probabilities.items(), key=lambda pair: -pair[1])
            others = [f"{label} {percent(p)}" for label, p in ranked if label != face.label and p >= _MIN_LISTED]
            style = "dim" if face.uncertain else hex_color(face.label, face.probabilities)
            bar = ("\u2591" if face.uncertain else "\u2588") * round(face.confidence * _BAR)
            bar_text = Text(bar, hex_color(face.label, face.probabilities))
            table.add_row(str(face.track), Text(label_text(face), style), bar_text, ", ".join(others))
        return table

    def close(self, *, complete: bool) -> None:
        """Remove the table."""
        self._live.stop()


class LinesView(View):
    """One line per change of a label, for output to a file or another program."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed: dict[int, tuple[str, bool]] = {}

    def show(self, moment: Moment) -> bool:
        """Print the labels that have changed."""
        for face in moment.photo.faces:
            state = (face.label, face.uncertain)
            if self._printed.get(face.track) != state:
                self._printed[face.track] = state
                self._console.out(f"{moment.frame.time_s:8.2f} s  person {face.track}  {label_text(face)}")
        return True


class JsonLinesView(View):
    """One JSON object per frame on the standard output, for other programs."""

    def show(self, moment: Moment) -> bool:
        """Print the frame's time and faces. Returns: False if the reader has closed the pipe."""
        photo = moment.photo
        line = {"time_s": round(moment.frame.time_s, 3), "width": photo.width, "height": photo.height}
        try:
            sys.stdout.write(json.dumps(line | {"faces": [face.to_dict() for face in photo.faces]}) + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again at its exit
            return False
        return True


class WindowView:
    """A window with the annotated frame; Escape, q or closing it ends the run."""

    def __init__(self, name: str) -> None:
        self._name = f"Mien: {name}"
        self._sized = False
        # GUI_NORMAL: without Qt's toolbar and status bar
        cv2.namedWindow(self._name, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO | cv2.WINDOW_GUI_NORMAL)

    def show(self, moment: Moment) -> bool:
        """Show the frame. Returns: False if the user closed the window or pressed Escape or q."""
        if not self._sized:
            cv2.resizeWindow(self._name, moment.photo.width, moment.photo.height)
            self._sized = True
        cv2.imshow(self._name, cv2.cvtColor(moment.drawn, cv2.COLOR_RGB2BGR))
        key = cv2.waitKey(1) & 0xFF
        return key not in {_ESCAPE, ord("q")} and cv2.getWindowProperty(self._name, cv2.WND_PROP_VISIBLE) >= 1

    def close(self, *, complete: bool) -> None:
        """Close the window, if it is still open."""
        cv2.destroyAllWindows()


class EpisodesFile:
    """A table of episodes (`app/inference/episodes.py`), written as they end; it replaces one at the first frame."""

    def __init__(self, path: Path) -> None:
        """Create the file. Raises: SourceUnavailable."""
        try:
            self._file = path.open("a", encoding="utf-8", newline="")
        except OSError as error:
            raise SourceUnavailable(f"{path}: cannot be written ({error.strerror})") from error
        self._table = csv.DictWriter(self._file, COLUMNS)
        self._episodes: Episodes | None = None

    def show(self, moment: Moment) -> bool:
        """Add a frame."""
        if self._episodes is None:
            self._file.truncate(0)
            self._table.writeheader()
            self._episodes = Episodes()
        self._write(self._episodes.update(moment.unsmoothed, moment.frame.time_s))
        return True

    def _write(self, episodes: list[Episode]) -> None:
        self._table.writerows(map(values_of, episodes))
        self._file.flush()

    def close(self, *, complete: bool) -> None:
        """Write the episodes that are left."""
        if self._episodes is not None:
            self._write(self._episodes.close())
        self._file.close()


class VideoFile:
    """The annotated video as a file.

    The video is written to a temporary file in the same folder and renamed when it is complete.
    """

    def __init__(self, path: Path) -> None:
        """Check the path. Raises: SourceUnavailable, for an unknown format, a missing folder or a file in the way."""
        if path.suffix.lower() not in FORMATS:
            names = ", ".join(FORMATS)
            raise SourceUnavailable(
                f"{path}: unknown format. Expected one of {names}, or .csv for a table of episodes."
            )
        if path.is_dir():
            raise SourceUnavailable(f"{path}: cannot be written, because it is a folder")
        if not path.absolute().parent.is_dir():
            raise SourceUnavailable(f"{path}: the folder {path.absolute().parent} does not exist")
        self.path = path
        self._part = path.with_name(f"{path.stem}.part{path.suffix}")
        if self._part.exists():  # never replaced, since it may be the user's own
            raise SourceUnavailable(
                f"{self._part} exists: an interrupted run leaves its incomplete video there. If it is that, delete it "
                "and rerun the same command; if it is a video of your own, choose another --write."
            )
        self._writer: VideoWriter | None = None

    def show(self, moment: Moment) -> bool:
        """Add the annotated frame. Raises: SourceUnavailable."""
        self.add(moment.drawn, moment.frame.time_s)
        return True

    def add(self, image: Array, time_s: float) -> None:
        """Add a frame, (H, W, 3) uint8 RGB, at a time in seconds. Raises: SourceUnavailable."""
        with self._writing():
            if self._writer is None:
                self._writer = VideoWriter(self._part, format=FORMATS[self.path.suffix.lower()])
            self._writer.add(image, time_s)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except av.error.FFmpegError as error:
            raise SourceUnavailable(f"{self.path}: cannot be written ({error.strerror})") from error

    def close(self, *, complete: bool) -> None:
        """Finish the file, if there was a frame. An incomplete one is left as `NAME.part.mp4`, and its path printed."""
        if self._writer is None:
            return
        writer, self._writer = self._writer, None
        with self._writing():
            writer.close()
        if complete:
            self._part.replace(self.path)
        else:
            Console(stderr=True).out(
                f"The run ended early. The video up to that point is in {self._part}; {self.path} is unchanged."
            )


def has_display() -> bool:
    """Return whether a window or a browser can be shown. Without a display, Qt would abort the process."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_window(name: str) -> WindowView | None:
    """Open a window; None if there is no display or OpenCV was built without window support."""
    try:
        return WindowView(name) if has_display() else None
    except cv2.error:
        return None
