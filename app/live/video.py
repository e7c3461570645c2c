"""Frames of video files, cameras and network streams: cameras by OpenCV, all others by PyAV.

A file yields every frame in order. A camera or a network stream yields its newest frame and drops the ones in between,
so that there is no growing delay; after an outage, it is opened again.
"""

import os
import re
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import cv2

from mien.app.errors import StartupError
from mien.app.inference.video import Cuts, Video, VideoError
from mien.data.contract import Array

_READ_TIMEOUT_S: Final = 10.0
_FIRST_WAIT_S: Final = 1.0  # before a source is opened again; each further attempt waits twice as long
_MAX_WAIT_S: Final = 30.0


class SourceUnavailable(StartupError):
    """A video that cannot be opened or written."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One frame: (H, W, 3) uint8 RGB pixels, and the time in seconds since the start of the source.

    cut: whether another scene of a file has begun since the frame before.
    """

    time_s: float
    pixels: Array
    cut: bool = False


class Source(ABC):
    """Frames with their times."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def frames(self) -> Iterator[Frame]:
        """Frames in order, until the source ends."""

    @abstractmethod
    def close(self) -> None:
        """Release the file, camera or connection."""


@dataclass(frozen=True, slots=True)
class Connection:
    """An open camera or stream; `read` returns the next frame, (H, W, 3) uint8 RGB, or None after an error."""

    read: Callable[[], Array | None]
    release: Callable[[], object]


def open_source(text: str, *, paced: bool = False, say: Callable[[str], None] | None = None) -> Source:
    """Open a camera by number, a file by name, or a stream by URL, such as `rtsp://...`.

    Args:
        text: `0` is the first camera.
        paced: play a file in real time and skip frames if the consumer is slower.
        say: told about each outage of a camera or stream, which is then opened again; without it, an outage ends it.
    Raises: SourceUnavailable; its message does not include a password of the URL.
    """
    name = without_password(text)
    is_camera, is_file = text.isdecimal(), os.path.isfile(text)  # noqa: PTH113  # Path raises for a long name
    if is_camera and not is_file:
        return LiveSource(name, connect=partial(_open_camera, int(text)), say=say)
    if not is_file and "://" not in text:
        raise SourceUnavailable(f"source {name}: no such file. Expected a video file, a camera number or a URL.")
    video = _open_video(text, timeout_s=None if is_file else _READ_TIMEOUT_S)
    if is_file or not video.is_live:
        return FileSource(name, video, paced=paced)
    return LiveSource(name, _connection_of(video), connect=partial(_open_stream, text), say=say)


def _open_video(text: str, *, timeout_s: float | None) -> Video:
    try:
        return Video(text, timeout_s=timeout_s)
    except VideoError as error:
        raise SourceUnavailable(f"source {without_password(text)}: {error}") from error


def _open_stream(text: str) -> Connection:
    """Open a stream by URL. Raises: SourceUnavailable."""
    return _connection_of(_open_video(text, timeout_s=_READ_TIMEOUT_S))


def _connection_of(video: Video) -> Connection:
    frames = iter(video)

    def read() -> Array | None:
        with suppress(VideoError):  # the connection ended
            frame = next(frames, None)
            return None if frame is None else frame.pixels()
        return None

    return Connection(read, video.close)


def _open_camera(number: int) -> Connection:
    """Open a camera by number, for which PyAV needs names that differ from system to system.

    Raises: SourceUnavailable.
    """
    level = cv2.utils.logging.getLogLevel()
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)  # failures are reported here
    try:
        capture = cv2.VideoCapture(min(number, 2**31 - 1))  # a C int
    finally:
        cv2.utils.logging.setLogLevel(level)
    if not capture.isOpened():
        raise SourceUnavailable(
            f"camera {number}: not found or in use. Connect it, or close the program that uses it, and try again."
        )

    def read() -> Array | None:
        success, pixels = capture.read()
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) if success else None

    return Connection(read, capture.release)


def without_password(text: str) -> str:
    """Return a URL without user and password, also if they are not percent-encoded, for printing."""
    return re.sub(r"(?<=://)[^/]*@", "", text)


class FileSource(Source):
    """Every frame of a file or, if paced, the frames that are due; damaged frames are left out."""

    def __init__(self, name: str, video: Video, *, paced: bool = False) -> None:
        super().__init__(name)
        self._video, self._paced = video, paced

    def frames(self) -> Iterator[Frame]:
        """Frames with the timestamps of the file."""
        start, cuts, cut = time.monotonic(), Cuts(), False
        with suppress(VideoError):  # a file that is truncated or gone ends here
            for frame in self._video:
                cut |= cuts.is_cut(frame)
                if self._paced:
                    ahead_s = frame.time_s - (time.monotonic() - start)
                    if ahead_s < -2 / self._video.fps:
                        continue
                    time.sleep(max(0.0, ahead_s))
                with suppress(VideoError):
                    yield Frame(frame.time_s, frame.pixels(), cut)
                    cut = False

    def close(self) -> None:
        """Release the file."""
        self._video.close()


class LiveSource(Source):
    """The newest frame of a camera or stream, read in a separate thread."""

    def __init__(
        self,
        name: str,
        connection: Connection | None = None,
        *,
        connect: Callable[[], Connection],
        say: Callable[[str], None] | None = None,
    ) -> None:
        """Take an open connection, or open one by `connect`, and again after an outage if there is `say`.

        Raises: see `connect`.
        """
        super().__init__(name)
        self._connect, self._say = connect, say
        self._connection = connection or connect()
        self._changed, self._closed = threading.Condition(), threading.Event()
        self._newest: Frame | None = None
        self._ended = False
        self._attempts = 0  # since the last frame
        self._reader = threading.Thread(target=self._read, name="mien-source", daemon=True)

    def _read(self) -> None:
        start = time.monotonic()
        while not self._ended:
            pixels = self._connection.read()
            if pixels is None and self._reconnect():
                continue
            with self._changed:
                if pixels is not None:
                    self._newest, self._attempts = Frame(time.monotonic() - start, pixels), 0
                else:
                    self._ended = True
                self._changed.notify()

    def _reconnect(self) -> bool:
        """Open the source again, with exponential backoff. Returns: False if it is closed, or an outage ends it."""
        if self._say is None or self._closed.is_set():
            return False
        lost_at = time.monotonic()
        self._connection.release()
        while True:
            wait_s = min(_FIRST_WAIT_S * 2**self._attempts, _MAX_WAIT_S)
            self._attempts += 1
            self._say(f"{self.name}: connection lost, trying again in {wait_s:g} s")
            if self._closed.wait(wait_s):
                return False
            with suppress(SourceUnavailable):
                self._connection = self._connect()
                break
        self._say(f"{self.name}: connected again after {time.monotonic() - lost_at:.0f} s")
        return True

    def frames(self) -> Iterator[Frame]:
        """Frames as they arrive; ends when the source ends or, unless it is opened again, sends nothing for 10 s."""
        self._reader.start()
        while True:
            with self._changed:
                arrived = self._changed.wait_for(lambda: self._newest is not None or self._ended, _READ_TIMEOUT_S)
                frame, self._newest = self._newest, None
            if frame is not None:
                yield frame
            elif arrived or self._say is None:
                return

    def close(self) -> None:
        """Stop reading; a blocked read ends with the process."""
        self._ended = True
        self._closed.set()
        if self._reader.is_alive():
            self._reader.join(2.0)
        if not self._reader.is_alive():
            self._connection.release()
