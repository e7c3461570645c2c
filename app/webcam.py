"""What does a face show right now? On a page in the browser, or on a video: in a window, in the terminal, in a file.

mien webcam
mien webcam --source film.mp4 --write labelled.mp4 --no-window

Flow: source -> pipeline -> tracks (smoothed labels) -> views. A view that is closed ends the run.
"""

import os
import socket
import sys
import threading
import time
import urllib.request
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol

import cv2
from rich.console import Console
from rich.live import Live
from rich.table import Table

from app.draw import annotate, percent
from app.errors import StartupError
from app.pipeline import Analysis, Pipeline
from app.settings import Settings
from app.tracking import TrackedFace, Tracker
from app.video import Frame, Source, SourceUnavailable, VideoFile, open_source
from data.contract import LABELS, Array

_LOCAL: Final = "127.0.0.1"
_ESCAPE: Final = 27
_BAR: Final = 20


@dataclass(frozen=True)
class Moment:
    """One labelled frame; the rate is frames per second over the last ones."""

    frame: Frame
    analysis: Analysis
    faces: Sequence[TrackedFace]
    rate: float

    @cached_property
    def drawn(self) -> Array:
        """The frame with its faces drawn in, (H, W, 3) uint8 RGB."""
        return annotate(self.frame.pixels, self.analysis)


class View(Protocol):
    """Something that shows moments; `show` answers whether to go on."""

    def show(self, moment: Moment) -> bool:
        """Show one moment."""

    def close(self) -> None:
        """Finish."""


@dataclass(slots=True)
class Summary:
    """What a run came to."""

    frames: int = 0
    seconds: float = 0.0
    people: set[int] = field(default_factory=set)

    def __str__(self) -> str:
        rate = self.frames / self.seconds if self.seconds else 0.0
        tracks = f"{len(self.people)} {'track' if len(self.people) == 1 else 'tracks'} of faces"
        return f"{self.frames} frames in {self.seconds:.1f} s ({rate:.1f} frames/s), {tracks}"


def label_video(pipeline: Pipeline, source: Source, views: Sequence[View]) -> Summary:
    """Label frame after frame until the source ends, a view is closed, or Ctrl-C; then close source and views."""
    summary, start = Summary(), time.perf_counter()
    tracker = Tracker(pipeline.classifier.manifest.abstain_threshold)
    pace = _Pace()
    try:
        for frame in source.frames():
            analysis = pipeline.analyse_pixels(frame.pixels)
            faces = tracker.update(analysis.faces, frame.time_s)
            summary.frames += 1
            summary.people.update(face.track for face in faces)
            shown = replace(analysis, faces=tuple(tracked.face for tracked in faces))
            moment = Moment(frame, shown, faces, pace.beat())
            if not all(view.show(moment) for view in views):
                break
    except KeyboardInterrupt:
        pass  # the usual way to end a live source; what was written is finished below
    finally:
        summary.seconds = time.perf_counter() - start
        source.close()
        for view in views:
            view.close()
    return summary


class _Pace:
    """Frames per second, smoothed over about a second."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._mean_s = 0.0

    def beat(self) -> float:
        now = time.perf_counter()
        if self._last is not None:
            passed = now - self._last
            share = min(1.0, passed) if self._mean_s else 1.0
            self._mean_s += share * (passed - self._mean_s)
        self._last = now
        return 1.0 / self._mean_s if self._mean_s else 0.0


class TableView:
    """A table in the terminal that changes in place: one row a person."""

    def __init__(self, console: Console, name: str) -> None:
        self._name = name
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()

    def show(self, moment: Moment) -> bool:
        """Bring the table up to this moment."""
        self._live.update(self._table(moment))
        return True

    def _table(self, moment: Moment) -> Table:
        caption = f"{moment.frame.time_s:.1f} s, {moment.rate:.1f} frames/s. Ctrl-C ends. Expressions, not feelings."
        table = Table(title=self._name, caption=caption)
        for heading in ("Person", "Expression", "", "Next"):
            table.add_column(heading)
        for tracked in moment.faces:
            table.add_row(*_row(tracked))
        return table

    def close(self) -> None:
        """Take the table away."""
        self._live.stop()


def _row(tracked: TrackedFace) -> tuple[str, str, str, str]:
    face = tracked.face
    order = sorted(zip(LABELS, face.probabilities.tolist(), strict=True), key=lambda pair: -pair[1])
    others = ", ".join(f"{label} {percent(value)}" for label, value in order if label != face.label and value >= 0.05)
    bar = "\u2588" * round(face.confidence * _BAR)
    return str(tracked.track), spoken(tracked), bar, others


def spoken(tracked: TrackedFace) -> str:
    """A face in words: `happiness 92%`, or `uncertain (sadness 31%)`."""
    words = f"{tracked.face.label} {percent(tracked.face.confidence)}"
    return f"uncertain ({words})" if tracked.face.uncertain else words


class LinesView:
    """One line for each change of a label: for output that goes into a file or another program."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._said: dict[int, str] = {}

    def show(self, moment: Moment) -> bool:
        """Print what has changed."""
        for tracked in moment.faces:
            label = "uncertain" if tracked.face.uncertain else tracked.face.label
            if self._said.get(tracked.track) != label:
                self._said[tracked.track] = label
                self._console.out(f"{moment.frame.time_s:8.2f} s  person {tracked.track}  {spoken(tracked)}")
        return True

    def close(self) -> None:
        """Nothing is left to do."""


class WindowView:
    """A window with the annotated picture; Escape, q or its closing ends the run."""

    def __init__(self, name: str) -> None:
        self._name = f"Mien: {name}"
        cv2.namedWindow(self._name, cv2.WINDOW_NORMAL | cv2.WINDOW_KEEPRATIO)

    def show(self, moment: Moment) -> bool:
        """Show the picture; answers False once the window is to close."""
        cv2.imshow(self._name, cv2.cvtColor(moment.drawn, cv2.COLOR_RGB2BGR))
        key = cv2.waitKey(1) & 0xFF
        return key not in {_ESCAPE, ord("q")} and cv2.getWindowProperty(self._name, cv2.WND_PROP_VISIBLE) >= 1

    def close(self) -> None:
        """Close the window, where the person has not."""
        cv2.destroyAllWindows()


class FileView:
    """The annotated video as a file."""

    def __init__(self, file: VideoFile) -> None:
        self._file = file

    def show(self, moment: Moment) -> bool:
        """Add the annotated picture."""
        self._file.add(moment.drawn, moment.frame.time_s)
        return True

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


def display_there() -> bool:
    """Whether a window or a browser can be shown: Qt would end the whole program where there is no display."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _window(name: str) -> WindowView | None:
    """A window, or None where this OpenCV was built without."""
    try:
        return WindowView(name) if display_there() else None
    except cv2.error:
        return None


def run(pipeline: Pipeline, text: str, *, write: Path | None, window: bool) -> Summary:
    """Label the source that `text` names; see `mien webcam --help`. Raises: SourceUnavailable."""
    console = Console()
    if write is not None and Path(text).exists() and write.exists() and write.samefile(text):
        raise SourceUnavailable(f"{write}: is the source itself; give the result another name")
    source = open_source(text, paced=write is None and (window or console.is_terminal))
    views: list[View] = [] if write is None else [FileView(VideoFile(write, source.fps))]
    shown = _window(source.name) if window else None
    if shown is not None:
        views.append(shown)
    else:
        views.append(TableView(console, source.name) if console.is_terminal else LinesView(console))
    summary = label_video(pipeline, source, views)
    if not summary.frames:
        raise SourceUnavailable(f"source {source.name}: no frame came that can be decoded")
    written = f"; wrote {write}" if write is not None else ""
    Console(stderr=True).out(f"{summary}{written}")
    return summary


def serve(settings: Settings, *, browser: bool) -> None:
    """Serve the page to this machine alone, and open it once it answers. Raises: StartupError and its kinds."""
    from app import server  # the server is not needed to label a video

    port = _port(settings)
    address = f"http://{_LOCAL}:{port}/"
    threading.Thread(target=_open_when_ready, args=(address, browser), daemon=True).start()
    server.run(settings.model_copy(update={"host": _LOCAL, "port": port, "workers": 1}))


def _port(settings: Settings) -> int:
    """The port of the settings; where nobody has asked for that very one and it is taken, a free one."""
    asked = "port" in settings.model_fields_set
    for port in (settings.port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_LOCAL, port))
            except OSError as error:
                if asked:
                    raise StartupError(f"port {port} of this machine: {error.strerror}; give another --port") from error
                continue
            return int(probe.getsockname()[1])
    raise StartupError("this machine has no free port")


def _open_when_ready(address: str, browser: bool) -> None:
    for _ in range(1200):
        try:
            with urllib.request.urlopen(f"{address}ready", timeout=5):  # noqa: S310  # our own address
                break
        except OSError:
            time.sleep(0.1)
    else:
        return
    opened = browser and display_there() and webbrowser.open(address)
    Console(stderr=True).out(f"The page is {'open at' if opened else 'at'} {address} (Ctrl-C ends)")
