"""Where do the frames of a video come from, and how does an annotated video get onto disk? Files, cameras, streams.

A file gives every frame in order. A camera or a network stream gives the newest frame and forgets the ones in between,
so that what is shown never lags behind what happens.
"""

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit, urlunsplit

import cv2

from app.errors import StartupError
from data.contract import Array

_USUAL_FPS: Final = 25.0
_MOST_FPS: Final = 240.0
_SILENCE_S: Final = 10.0
_LONGEST_GAP_S: Final = 10.0
# What the FFmpeg inside OpenCV's wheels can encode; H.264 is not in them.
CODECS: Final = {".mp4": "mp4v", ".mov": "mp4v", ".mkv": "mp4v", ".avi": "MJPG"}


class SourceUnavailable(StartupError):
    """A video that cannot be opened, or one that cannot be written."""


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """pixels: (H, W, 3) uint8 RGB; time_s: seconds from the start of the source."""

    time_s: float
    pixels: Array


class Source(Protocol):
    """Frames with their times; `fps` is the rate that the source states, or a usual one."""

    name: str
    fps: float
    live: bool

    def frames(self) -> Iterator[Frame]:
        """Frames in the order of time, until the source ends."""

    def close(self) -> None:
        """Let go of the file, camera or connection."""


def open_source(text: str, *, paced: bool = False) -> Source:
    """Open what a person wrote: a camera's number, a file's name, or an address such as `rtsp://...`.

    Args:
        text: `0` is the first camera.
        paced: play a file at its own speed, leaving out frames where the reader is slower.
    Raises: SourceUnavailable, without the password that an address may hold.
    """
    name = without_password(text)
    is_camera, is_file = text.isdecimal(), Path(text).is_file()
    if not is_camera and not is_file and "://" not in text:
        raise SourceUnavailable(f"source {name}: no such file; give a video, a camera's number or an address")
    video = cv2.VideoCapture(int(text)) if is_camera else cv2.VideoCapture(text)
    if not video.isOpened():
        expected = "is it plugged in, and free?" if is_camera else "no video that OpenCV's FFmpeg can open"
        raise SourceUnavailable(f"source {name}: {expected}")
    if is_camera or not (is_file or video.get(cv2.CAP_PROP_FRAME_COUNT) > 0):
        return LiveSource(name, video)
    return FileSource(name, video, paced=paced)


def without_password(text: str) -> str:
    """An address as it may be printed: without user and password."""
    parts = urlsplit(text)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])) if "@" in parts.netloc else text


def _rate(video: cv2.VideoCapture) -> float:
    stated = float(video.get(cv2.CAP_PROP_FPS))
    return stated if math.isfinite(stated) and 0 < stated <= _MOST_FPS else _USUAL_FPS


class FileSource:
    """Every frame of a file, or, paced, those whose time has come."""

    live = False

    def __init__(self, name: str, video: cv2.VideoCapture, *, paced: bool = False) -> None:
        self.name, self.fps = name, _rate(video)
        self._video, self._paced = video, paced

    def frames(self) -> Iterator[Frame]:
        """Frames with the times that the file states."""
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

    def close(self) -> None:
        """Close the file."""
        self._video.release()


class LiveSource:
    """The newest frame of a camera or stream, read in a thread of its own."""

    live = True

    def __init__(self, name: str, video: cv2.VideoCapture) -> None:
        self.name, self.fps = name, _rate(video)
        self._video = video
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
        """Frames as they come; ends when the source ends or is silent for ten seconds."""
        self._reader.start()
        while (frame := self._take()) is not None:
            yield Frame(frame.time_s, cv2.cvtColor(frame.pixels, cv2.COLOR_BGR2RGB))

    def _take(self) -> Frame | None:
        with self._changed:
            self._changed.wait_for(lambda: self._newest is not None or self._ended, _SILENCE_S)
            frame, self._newest = self._newest, None
        return frame

    def close(self) -> None:
        """Stop reading; a read that hangs is left to end with the process."""
        self._ended = True
        if self._reader.is_alive():
            self._reader.join(2.0)
        if not self._reader.is_alive():
            self._video.release()


class VideoFile:
    """An annotated video, at a constant rate whatever the pace of its frames: they are repeated or left out.

    It is written beside its place and moved there when it is whole.
    """

    def __init__(self, path: Path, fps: float) -> None:
        """Check the name. Raises: SourceUnavailable, for a kind that cannot be written or a folder that is missing."""
        if path.suffix.lower() not in CODECS:
            raise SourceUnavailable(f"{path}: a video is written as one of {', '.join(CODECS)}")
        if not path.absolute().parent.is_dir():
            raise SourceUnavailable(f"{path}: there is no such folder")
        self.path, self.fps = path, fps
        self._part = path.with_name(f".{path.stem}.part{path.suffix}")
        self._writer: cv2.VideoWriter | None = None
        self._size = (0, 0)
        self._written = 0

    def add(self, image: Array, time_s: float) -> None:
        """Add a frame, (H, W, 3) uint8 RGB, of a moment in seconds. Raises: SourceUnavailable."""
        writer = self._writer or self._open(image)
        pixels = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        if (pixels.shape[1], pixels.shape[0]) != self._size:
            pixels = cv2.resize(pixels, self._size, interpolation=cv2.INTER_AREA)
        due = round(time_s * self.fps) + 1 - self._written
        if due > _LONGEST_GAP_S * self.fps:  # a time stamp that is wrong, not a pause
            due = 1
        for _ in range(due):
            writer.write(pixels)
        self._written += max(0, due)

    def _open(self, image: Array) -> cv2.VideoWriter:
        self._size = (image.shape[1], image.shape[0])
        codec = cv2.VideoWriter.fourcc(*CODECS[self.path.suffix.lower()])
        self._writer = cv2.VideoWriter(str(self._part), codec, self.fps, self._size)
        if not self._writer.isOpened():
            raise SourceUnavailable(f"{self.path}: cannot be written as {self._size[0]} x {self._size[1]} video")
        return self._writer

    def close(self) -> None:
        """Finish the file, if there was a frame."""
        if self._writer is not None:
            self._writer.release()
            self._writer = None
            self._part.replace(self.path)
