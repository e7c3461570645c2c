"""Frames of video files, cameras and network streams.

A file yields every frame in order. A camera or a network stream yields its newest frame and drops the ones in between,
so that there is no growing delay.
"""

import math
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import cv2

from mien.app.errors import StartupError
from mien.app.inference.decode import open_video
from mien.data.contract import Array

_DEFAULT_FPS: Final = 25.0
_MAX_FPS: Final = 240.0
_READ_TIMEOUT_S: Final = 10.0
_CANNOT_OPEN: Final = {
    True: "camera {name}: not found or in use. Connect it, or close the program that uses it, and try again.",
    False: "source {name}: cannot be opened. Expected a video that OpenCV's FFmpeg can read.",
}


class SourceUnavailable(StartupError):
    """A video that cannot be opened or written."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One frame: (H, W, 3) uint8 RGB pixels, and the time in seconds since the start of the source."""

    time_s: float
    pixels: Array


class Source(ABC):
    """Frames with their times; `fps` is the frame rate that the source states, or a default."""

    def __init__(self, name: str, video: cv2.VideoCapture) -> None:
        stated = float(video.get(cv2.CAP_PROP_FPS))
        self.name, self.fps = name, stated if math.isfinite(stated) and 0 < stated <= _MAX_FPS else _DEFAULT_FPS
        self._video = video

    @abstractmethod
    def frames(self) -> Iterator[Frame]:
        """Frames in order, until the source ends."""

    def close(self) -> None:
        """Release the file, camera or connection."""
        self._video.release()


def open_source(text: str, *, paced: bool = False) -> Source:
    """Open a camera by number, a file by name, or a stream by URL, such as `rtsp://...`.

    Args:
        text: `0` is the first camera.
        paced: play a file in real time and skip frames if the consumer is slower.
    Raises: SourceUnavailable; its message does not include a password of the URL.
    """
    name = without_password(text)
    is_camera, is_file = text.isdecimal(), os.path.isfile(text)  # noqa: PTH113  # Path raises for a long name
    if not is_camera and not is_file and "://" not in text:
        raise SourceUnavailable(f"source {name}: no such file. Expected a video file, a camera number or a URL.")
    video = _open_quietly(text, is_file=is_file)
    if not video.isOpened():
        raise SourceUnavailable(_CANNOT_OPEN[is_camera].format(name=name))
    if is_camera or not (is_file or video.get(cv2.CAP_PROP_FRAME_COUNT) > 0):
        return LiveSource(name, video)
    return FileSource(name, video, paced=paced)


def _open_quietly(text: str, *, is_file: bool) -> cv2.VideoCapture:
    """Open a source without OpenCV's own warnings, which are hard to read; the caller reports failures."""
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    try:
        if text.isdecimal():
            return cv2.VideoCapture(int(text))
        return open_video(text) if is_file else cv2.VideoCapture(text)
    finally:
        cv2.utils.logging.setLogLevel(level)


def without_password(text: str) -> str:
    """Return a URL without user and password, also if they are not percent-encoded, for printing."""
    return re.sub(r"(?<=://)[^/]*@", "", text)


class FileSource(Source):
    """Every frame of a file or, if paced, the frames that are due."""

    def __init__(self, name: str, video: cv2.VideoCapture, *, paced: bool = False) -> None:
        super().__init__(name, video)
        self._paced = paced

    def frames(self) -> Iterator[Frame]:
        """Frames with the timestamps of the file."""
        start, number = time.monotonic(), 0
        while self._video.grab():
            stamp_s = self._video.get(cv2.CAP_PROP_POS_MSEC) / 1000.0
            time_s = stamp_s if stamp_s > 0 else number / self.fps
            number += 1
            if self._paced:
                ahead_s = time_s - (time.monotonic() - start)
                if ahead_s < -2 / self.fps:
                    continue
                time.sleep(max(0.0, ahead_s))
            read, pixels = self._video.retrieve()
            if read:
                yield Frame(time_s, cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))


class LiveSource(Source):
    """The newest frame of a camera or stream, read in a separate thread."""

    def __init__(self, name: str, video: cv2.VideoCapture) -> None:
        super().__init__(name, video)
        self._changed = threading.Condition()
        self._newest: Frame | None = None
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="mien-source", daemon=True)

    def _read(self) -> None:
        start = time.monotonic()
        while not self._ended:
            read, pixels = self._video.read()
            with self._changed:
                if read:
                    self._newest = Frame(time.monotonic() - start, pixels)
                else:
                    self._ended = True
                self._changed.notify()

    def frames(self) -> Iterator[Frame]:
        """Frames as they arrive; ends when the source ends or sends nothing for ten seconds."""
        self._reader.start()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._ended, _READ_TIMEOUT_S)
                frame, self._newest = self._newest, None
            if frame is None:
                return
            yield Frame(frame.time_s, cv2.cvtColor(frame.pixels, cv2.COLOR_BGR2RGB))

    def close(self) -> None:
        """Stop reading; a blocked read ends with the process."""
        self._ended = True
        if self._reader.is_alive():
            self._reader.join(2.0)
        if not self._reader.is_alive():
            super().close()
