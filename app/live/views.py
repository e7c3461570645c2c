"""Views of the labeled frames of a video: a window, a table, lines of text, a file."""

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import cv2
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mien.app.inference.drawing import annotate
from mien.app.inference.pipeline import Analysis, LabeledFace
from mien.app.inference.wording import label_text, percent
from mien.app.live.video import Frame, VideoFile
from mien.data.contract import Array, by_label
from mien.data.contract.palette import hex_color

_ESCAPE: Final = 27
_BAR: Final = 20
_MIN_LISTED: Final = 0.05


@dataclass(frozen=True)
class Moment:
    """One labeled frame; the rate is the recent number of frames per second."""

    frame: Frame
    analysis: Analysis
    rate: float

    @cached_property
    def drawn(self) -> Array:
        """The frame with its faces drawn in, (H, W, 3) uint8 RGB."""
        return annotate(self.frame.pixels, self.analysis)


class View(Protocol):
    """Interface of a view."""

    def show(self, moment: Moment) -> bool:
        """Show one moment. Returns: whether to continue."""

    def close(self, *, complete: bool) -> None:
        """Finish; `complete` is False if the run ended with an error."""


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
        for face in moment.analysis.faces:
            table.add_row(*_row(face))
        return table

    def close(self, *, complete: bool) -> None:
        """Remove the table."""
        self._live.stop()


def _row(face: LabeledFace) -> tuple[str, Text, Text, str]:
    ranked = sorted(by_label(face.probabilities).items(), key=lambda pair: -pair[1])
    others = [f"{label} {percent(value)}" for label, value in ranked if label != face.label and value >= _MIN_LISTED]
    style = "dim" if face.uncertain else hex_color(face.label)
    bar = ("\u2591" if face.uncertain else "\u2588") * round(face.confidence * _BAR)
    return str(face.track), Text(label_text(face), style), Text(bar, hex_color(face.label)), ", ".join(others)


class LinesView:
    """One line per change of a label, for output to a file or another program."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._printed: dict[int, tuple[str, bool]] = {}

    def show(self, moment: Moment) -> bool:
        """Print the labels that have changed."""
        for face in moment.analysis.faces:
            state = (face.label, face.uncertain)
            if self._printed.get(face.track) != state:
                self._printed[face.track] = state
                self._console.out(f"{moment.frame.time_s:8.2f} s  person {face.track}  {label_text(face)}")
        return True

    def close(self, *, complete: bool) -> None:
        """Do nothing: lines are printed immediately."""


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
            cv2.resizeWindow(self._name, moment.analysis.width, moment.analysis.height)
            self._sized = True
        cv2.imshow(self._name, cv2.cvtColor(moment.drawn, cv2.COLOR_RGB2BGR))
        key = cv2.waitKey(1) & 0xFF
        return key not in {_ESCAPE, ord("q")} and cv2.getWindowProperty(self._name, cv2.WND_PROP_VISIBLE) >= 1

    def close(self, *, complete: bool) -> None:
        """Close the window, if it is still open."""
        cv2.destroyAllWindows()


class FileView:
    """The annotated video as a file."""

    def __init__(self, file: VideoFile) -> None:
        self._file = file

    def show(self, moment: Moment) -> bool:
        """Add the annotated frame."""
        self._file.add(moment.drawn, moment.frame.time_s)
        return True

    def close(self, *, complete: bool) -> None:
        """Finish the file, and print the path of an incomplete one."""
        path = self._file.close(complete=complete)
        if path is not None and not complete:
            Console(stderr=True).out(
                f"The run ended early. The video up to that point is in {path}; {self._file.path} is unchanged."
            )


def has_display() -> bool:
    """Whether a window or a browser can be shown. Without a display, Qt would abort the process."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def open_window(name: str) -> WindowView | None:
    """Open a window; None if there is no display or OpenCV was built without window support."""
    try:
        return WindowView(name) if has_display() else None
    except cv2.error:
        return None
