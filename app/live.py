"""Labels of a camera, a video file or a network stream as JSON Lines, for other programs.

mien webcam --source rtsp://camera.local/stream --json
"""

import json
import os
import queue
import re
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, Final, NamedTuple

import cv2

from mien.app.errors import StartupError
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import FACES
from mien.app.inference.tracker import Tracker
from mien.app.video.reader import Cuts, Video, VideoError
from mien.data.contract import Array

_READ_TIMEOUT_S: Final = 10.0


class SourceUnavailable(StartupError):
    """A source that cannot be opened, or that ended with an error."""


class Frame(NamedTuple):
    """One frame.

    time_s: since the start of the source.
    pixels: (H, W, 3) uint8 RGB.
    cut: whether another scene of a file has begun since the frame before.
    """

    time_s: float
    pixels: Array
    cut: bool = False


def write_lines(labeler: Labeler, source: str, file: IO[str]) -> None:
    """Write one JSON object per frame until the source ends. Raises: SourceUnavailable; BrokenPipeError."""
    for line in label_frames(labeler, read_frames(source)):
        file.write(json.dumps(line) + "\n")
        file.flush()


def label_frames(labeler: Labeler, frames: Iterator[Frame]) -> Iterator[dict[str, Any]]:
    """The time, size and faces of each frame; faces have numbers of people and smoothed probabilities."""
    tracker = Tracker(labeler.threshold())
    for frame in frames:
        photo = labeler.label(frame.pixels)
        tracked = tracker.update(photo.faces, frame.time_s, cut=frame.cut)
        faces = FACES.dump_python([*tracked], mode="json")
        yield {"time_s": round(frame.time_s, 3), "width": photo.width, "height": photo.height, "faces": faces}


def read_frames(source: str) -> Iterator[Frame]:
    """All frames of a file, or the newest ones of a camera or stream.

    Args:
        source: `0` is the first camera; otherwise the name of a file or a URL, such as `rtsp://...`.
    Raises: SourceUnavailable; its message does not include a password of the URL.
    """
    name = re.sub(r"(?<=://)[^/]*@", "", source)  # A user and a password are left out.
    is_file = os.path.isfile(source)  # noqa: PTH113  # Path raises for a long name
    if source.isdecimal() and not is_file:
        yield from newest(_camera_frames(int(source)))
        return
    if not is_file and "://" not in source:
        raise SourceUnavailable(f"source {name}: no such file. Expected a video file, a camera number or a URL.")
    try:
        with Video(source, timeout_s=None if is_file else _READ_TIMEOUT_S) as video:
            is_live = not is_file and video.is_live
            frames = _video_frames(video, is_live=is_live)
            yield from newest(frames) if is_live else frames
    except VideoError as error:
        raise SourceUnavailable(f"source {name}: {error}") from error


def _video_frames(video: Video, *, is_live: bool) -> Iterator[Frame]:
    cuts, cut, start = Cuts(), False, time.monotonic()
    for frame in video:
        cut |= not is_live and cuts.is_cut(frame)
        with suppress(VideoError):  # A damaged frame is left out.
            yield Frame(time.monotonic() - start if is_live else frame.time_s, frame.pixels(), cut)
            cut = False


def _camera_frames(number: int) -> Iterator[Frame]:
    """Frames of a camera by number, for which PyAV needs names that differ from system to system."""
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # Failures are reported here.
    try:
        capture = cv2.VideoCapture(min(number, 2**31 - 1))  # a C int
    finally:
        cv2.utils.logging.setLogLevel(level)
    if not capture.isOpened():
        raise SourceUnavailable(
            f"camera {number}: not found or in use. Connect it, or close the program that uses it, and try again."
        )
    start = time.monotonic()
    while True:
        success, pixels = capture.read()
        if not success:
            raise SourceUnavailable(f"camera {number}: disconnected.")
        yield Frame(time.monotonic() - start, cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))


def newest(frames: Iterator[Frame]) -> Iterator[Frame]:
    """The newest frame whenever one is asked for; those in between are dropped, so that the delay does not grow.

    Raises: the error that ended `frames`, which are read in another thread.
    """
    slot: queue.Queue[Frame | Exception | None] = queue.Queue(maxsize=1)

    def put(item: Frame | Exception | None) -> None:
        with suppress(queue.Empty):
            slot.get_nowait()
        slot.put(item)

    def read() -> None:
        try:
            for frame in frames:
                put(frame)
        except Exception as error:  # noqa: BLE001  # raised in the other thread
            slot.put(error)
        else:
            slot.put(None)

    threading.Thread(target=read, name="mien-source", daemon=True).start()
    while (item := slot.get()) is not None:
        if isinstance(item, Exception):
            raise item
        yield item
