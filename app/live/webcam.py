"""Live labeling of a camera, a video file or a network stream on this machine.

mien webcam --source film.mp4 --write labeled.mp4 --no-window

Flow: source -> labeler -> tracks (smoothed labels) -> views. Closing a view ends the run.
"""

import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from rich.console import Console

from mien.app.inference.labeler import Labeler
from mien.app.inference.tracking import Tracker
from mien.app.live.video import Source, SourceUnavailable, open_source
from mien.app.live.views import (
    EpisodesFile,
    JsonLinesView,
    LinesView,
    Moment,
    TableView,
    VideoFile,
    View,
    has_display,
    open_window,
)
from mien.app.wording import counted

_RECENT_FRAMES: Final = 20  # of which the rate is shown


@dataclass(slots=True)
class Summary:
    """Number of frames, duration and tracks of a run."""

    frames: int = 0
    seconds: float = 0.0
    tracks: set[int] = field(default_factory=set)
    stopped: bool = False  # by Ctrl-C or SIGTERM

    def __str__(self) -> str:
        rate = self.frames / self.seconds if self.seconds else 0.0
        frames, tracks = counted(self.frames, "frame"), counted(len(self.tracks), "track")
        return f"{frames} in {self.seconds:.1f} s ({rate:.1f} frames/s), {tracks} of faces"


def label_video(labeler: Labeler, source: Source, open_views: Sequence[Callable[[], View]]) -> Summary:
    """Label frames until the source ends, a view is closed, or Ctrl-C or SIGTERM stops it; then close everything.

    Called in the main thread. The views are opened here, so that an error closes the source and those that are open.
    """
    tracker, recent_s = Tracker(labeler.threshold()), deque[float](maxlen=_RECENT_FRAMES)
    summary, start = Summary(), time.perf_counter()
    with ExitStack() as cleanup:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # of `timeout` and of service managers
        cleanup.callback(signal.signal, signal.SIGTERM, before)
        cleanup.callback(source.close)
        views = [_closed_by(cleanup, open_view()) for open_view in open_views]
        try:
            for frame in source.frames():
                photo = labeler.label(frame.pixels)
                tracked = replace(photo, faces=tuple(tracker.update(photo.faces, frame.time_s, cut=frame.cut)))
                summary.frames += 1
                summary.tracks.update(face.track for face in tracked.faces)
                recent_s.append(time.perf_counter())
                rate = (len(recent_s) - 1) / max(1e-9, recent_s[-1] - recent_s[0])
                unsmoothed = (replace(photo.faces[face.index], track=face.track) for face in tracked.faces)
                moment = Moment(frame, tracked, rate, tuple(unsmoothed))
                if not all(view.show(moment) for view in views):
                    break
        except KeyboardInterrupt:
            summary.stopped = True  # the usual way to stop a live source
        summary.seconds = time.perf_counter() - start
    return summary


def _closed_by(cleanup: ExitStack, view: View) -> View:
    def close(error: type[BaseException] | None, *_: object) -> None:
        view.close(complete=error is None)

    cleanup.push(close)
    return view


def run(
    labeler: Labeler,
    text: str,
    *,
    write: Path | None,
    window: bool,
    as_json: bool = False,
    reconnect: bool = False,
) -> Summary:
    """Label a source; see `mien webcam --help`. Raises: SourceUnavailable."""
    console, messages = Console(), Console(stderr=True)
    if write is not None and Path(text).exists() and write.exists() and write.samefile(text):
        raise SourceUnavailable(f"{write}: this file is the source. Choose another name for --write.")
    paced = write is None and not as_json and (console.is_terminal or (window and has_display()))
    source = open_source(text, paced=paced, say=messages.out if reconnect else None)
    open_screen = JsonLinesView if as_json else lambda: _open_screen(console, source.name, window=window)
    open_views: list[Callable[[], View]] = [open_screen]
    if write is not None:
        is_table = write.suffix.lower() == ".csv"
        open_views.insert(0, lambda: EpisodesFile(write) if is_table else VideoFile(write))
    summary = label_video(labeler, source, open_views)
    if not summary.frames and not summary.stopped:
        raise SourceUnavailable(f"source {source.name}: no frame could be decoded")
    written = f"; wrote {write}" if write is not None and summary.frames else ""
    messages.out(f"{summary}{written}")
    return summary


def _open_screen(console: Console, name: str, *, window: bool) -> View:
    """A window if it is wanted and possible, else a table in a terminal, else lines."""
    shown = open_window(name) if window else None
    return shown or (TableView(console, name) if console.is_interactive else LinesView(console))
