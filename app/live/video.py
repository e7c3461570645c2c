"""Frames of video files, cameras and network streams: cameras by OpenCV, all others by PyAV.

A file yields every frame in order. A camera or a network stream yields its newest frame and drops the ones in between,
so that there is no growing delay.
"""

import math
import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import cv2

from mien.app.errors import StartupError
from mien.app.inference.video import Video, VideoError
from mien.data.contract import Array

_DEFAULT_FPS: Final = 25.0
_MAX_FPS: Final = 240.0
_READ_TIMEOUT_S: Final = 10.0


class SourceUnavailable(StartupError):
    """A video that cannot be opened or written."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One frame: (H, W, 3) uint8 RGB pixels, and the time in seconds since the start of the source."""

    time_s: float
    pixels: Array


class Source(ABC):
    """Frames with their times; `fps` is the frame rate that the source states, or a default."""

    def __init__(self, name: str, fps: float) -> None:
        self.name, self.fps = name, fps

    @abstractmethod
    def frames(self) -> Iterator[Frame]:
        """Frames in order, until the source ends."""

    @abstractmethod
    def close(self) -> None:
        """Release the file, camera or connection."""


def open_source(text: str, *, paced: bool = False) -> Source:
    """Open a camera by number, a file by name, or a stream by URL, such as `rtsp://...`.

    Args:
        text: `0` is the first camera.
        paced: play a file in real time and skip frames if the consumer is slower.
    Raises: SourceUnavailable; its message does not include a password of the URL.
    """
    name = without_password(text)
    is_camera, is_file = text.isdecimal(), os.path.isfile(text)  # noqa: PTH113  # Path raises for a long name
    if is_camera and not is_file:
        camera = _Camera(int(text))
        return LiveSource(name, camera.fps, camera.read, camera.release)
    if not is_file and "://" not in text:
        raise SourceUnavailable(f"source {name}: no such file. Expected a video file, a camera number or a URL.")
    try:
        video = Video(text, timeout_s=None if is_file else _READ_TIMEOUT_S)
    except VideoError as error:
        raise SourceUnavailable(f"source {name}: {error}") from error
    if is_file or not video.is_live:
        return FileSource(name, video, paced=paced)
    frames = iter(video)

    def read() -> Array | None:
        with suppress(VideoError):  # the connection ended
            frame = next(frames, None)
            return None if frame is None else frame.pixels()
        return None

    return LiveSource(name, video.fps, read, video.close)


class _Camera:
    """A camera by number, for which PyAV needs names that differ from system to system."""

    def __init__(self, number: int) -> None:
        level = cv2.utils.logging.getLogLevel()
        cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # failures are reported here
        try:
            self._capture = cv2.VideoCapture(number)
        finally:
            cv2.utils.logging.setLogLevel(level)
        if not self._capture.isOpened():
            raise SourceUnavailable(
                f"camera {number}: not found or in use. Connect it, or close the program that uses it, and try again."
            )
        stated = float(self._capture.get(cv2.CAP_PROP_FPS))
        self.fps = stated if math.isfinite(stated) and 0 < stated <= _MAX_FPS else _DEFAULT_FPS
        self.release = self._capture.release

    def read(self) -> Array | None:
        """The next frame, (H, W, 3) uint8 RGB, or None after an error."""
        read, pixels = self._capture.read()
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) if read else None


def without_password(text: str) -> str:
    """Return a URL without user and password, also if they are not percent-encoded, for printing."""
    return re.sub(r"(?<=://)[^/]*@", "", text)


class FileSource(Source):
    """Every frame of a file or, if paced, the frames that are due; damaged frames are left out."""

    def __init__(self, name: str, video: Video, *, paced: bool = False) -> None:
        super().__init__(name, video.fps)
        self._video, self._paced = video, paced

    def frames(self) -> Iterator[Frame]:
        """Frames with the timestamps of the file."""
        start = time.monotonic()
        with suppress(VideoError):  # a file that is truncated or gone ends here
            for frame in self._video:
                if self._paced:
                    ahead_s = frame.time_s - (time.monotonic() - start)
                    if ahead_s < -2 / self.fps:
                        continue
                    time.sleep(max(0.0, ahead_s))
                with suppress(VideoError):
                    yield Frame(frame.time_s, frame.pixels())

    def close(self) -> None:
        """Release the file."""
        self._video.close()


class LiveSource(Source):
    """The newest frame of a camera or stream, read in a separate thread."""

    def __init__(self, name: str, fps: float, read: Callable[[], Array | None], release: Callable[[], object]) -> None:
        """Read frames, (H, W, 3) uint8 RGB, by `read` until it returns None."""
        super().__init__(name, fps)
        self._read_frame, self._release = read, release
        self._changed = threading.Condition()
        self._newest: Frame | None = None
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="mien-source", daemon=True)

    def _read(self) -> None:
        start = time.monotonic()
        while not self._ended:
            pixels = self._read_frame()
            with self._changed:
                if pixels is not None:
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
            yield frame

    def close(self) -> None:
        """Stop reading; a blocked read ends with the process."""
        self._ended = True
        if self._reader.is_alive():
            self._reader.join(2.0)
        if not self._reader.is_alive():
            self._release()
