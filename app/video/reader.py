"""Frames of video files and network streams, decoded by PyAV, the binding of FFmpeg's libraries.

OpenCV's video reader is not used: for interlaced video it returns the buffer of an earlier frame, even one of another
file, and it ignores pixel aspect ratios, mirroring and edit lists.
"""

import math
import os
import re
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final, Self

import av
import cv2
import numpy as np
from av.container import InputContainer
from av.sidedata.sidedata import Type as SideData
from av.stream import Disposition

from mien.app.inference.tracker import CUT_CHANGE
from mien.data.contract import Array, EmptyImage
from mien.data.errors import MienError

_DEFAULT_FPS: Final = 25.0
_MAX_FPS: Final = 240.0
# FFmpeg's -dts_delta_threshold: a larger step is the seam of two recordings, as in joined transport streams
_SEAM_S: Final = 10.0
_WITH_SEAMS: Final = frozenset(("mpegts", "mpeg", "rtsp", "rtp"))
# A video is truncated if more than this share of its stated length, and more than this many seconds, are missing.
_MISSING_SHARE: Final = 0.1
_MISSING_S: Final = 0.5


# Light, relative to white paper (203 cd/m²), of 1,024 values of HDR. Sources: ITU-R BT.2100, BT.2408, BT.2087.
_VALUES: Final = np.linspace(0, 1, 1024, dtype=np.float32)
_HLG: Final = np.where(
    _VALUES <= 0.5, _VALUES**2 / 3, (np.exp((_VALUES - 0.55991073) / 0.17883277) + 0.28466892) / 12
).astype(np.float32)
_PQ_POWER: Final = _VALUES ** (1 / 78.84375)
_PQ: Final = (np.maximum(_PQ_POWER - 0.8359375, 0) / (18.8515625 - 18.6875 * _PQ_POWER)) ** (1 / 0.1593017578125)
_HDR_CURVES: Final = {
    18: (1000 / 203 * _HLG**1.2).astype(np.float32),  # HLG, as a display of 1,000 cd/m² shows it
    16: (10_000 / 203 * _PQ).astype(np.float32),
}
_BT2020_TO_BT709: Final = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
)
_KNEE: Final = 0.8  # brighter light is compressed
_HDR_ROWS: Final = 64


class VideoError(MienError):
    """A video, or a frame of it, that cannot be decoded."""

    code = "corrupt"


class Skipped(VideoError):
    """A file without anything to label, which is not an error."""


class NoVideo(Skipped):
    """A file with only sound, a cover picture or other data."""

    code = "no_video"


class NotAVideo(Skipped):
    """A file with the name of a video and another content, such as TypeScript."""

    code = "not_an_image"


class OutsidePart(Skipped):
    """A video without a frame in the chosen part."""

    code = "outside_part"


@dataclass(frozen=True, slots=True)
class VideoFrame:
    """One decoded frame: its number from 0, and its time in seconds since the start of the file."""

    number: int
    time_s: float
    _decoded: Any
    _aspect: Fraction

    def pixels(self) -> Array:
        """Upright pixels of square shape, (H, W, 3) uint8 RGB. Raises: VideoError, for a damaged frame."""
        self._check()
        pixels = _rgb(self._decoded)
        height, width = pixels.shape[:2]
        shown = (round(width * max(self._aspect, 1)), round(height / min(self._aspect, 1)))
        if self._decoded.interlaced_frame:
            pixels = pixels[::2]  # the lines in between show another moment
        if shown != (pixels.shape[1], pixels.shape[0]):
            pixels = cv2.resize(np.ascontiguousarray(pixels), shown, interpolation=cv2.INTER_CUBIC)
        return _turned(pixels, self._decoded)

    def thumbnail(self) -> Array:
        """The frame at 64x36 pixels, stretched and not turned, (36, 64, 3) uint8 RGB. Raises: see `pixels`."""
        self._check()
        pixels: Array = self._decoded.to_ndarray(format="rgb24", width=64, height=36, interpolation="AREA")
        return pixels

    def _check(self) -> None:
        if self._decoded.is_corrupt:
            raise VideoError(f"frame {self.number} is damaged")


def _rgb(decoded: Any) -> Array:
    """Pixels of a frame, (H, W, 3) uint8 RGB; those of HDR, which would be dark and gray, are toned down to SDR."""
    curve = _HDR_CURVES.get(decoded.color_trc)
    if curve is None:
        pixels: Array = decoded.to_ndarray(format="rgb24")
        return pixels
    deep: Array = decoded.to_ndarray(format="rgb48le", src_colorspace=9)
    rgb = np.empty(deep.shape, np.uint8)
    for top in range(0, len(deep), _HDR_ROWS):
        light = curve[deep[top : top + _HDR_ROWS] >> 6] @ _BT2020_TO_BT709.T
        bright = light > _KNEE
        light[bright] = 1 - (1 - _KNEE) * np.exp(-(light[bright] - _KNEE) / (1 - _KNEE))
        rgb[top : top + _HDR_ROWS] = np.rint(255 * np.clip(light, 0, 1) ** (1 / 2.4))
    return rgb


class Cuts:
    """Cuts of a video, by the mean change of hue, saturation and value from one frame to the next.

    Source: the content detector of PySceneDetect.
    """

    def __init__(self) -> None:
        self._last: Array | None = None

    def is_cut(self, frame: VideoFrame) -> bool:
        """Return whether another scene begins with the next frame; a damaged one is left out."""
        try:
            hsv = cv2.cvtColor(frame.thumbnail(), cv2.COLOR_RGB2HSV)
        except VideoError:
            return False
        last, self._last = self._last, hsv
        return last is not None and bool(cv2.absdiff(hsv, last).mean() >= CUT_CHANGE)


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """A frame to label.

    Attributes:
        until_s: time until which it stands for the video: the next sample, a cut, or the end.
        scene: number of cuts before it.
        pixels: (H, W, 3) uint8 RGB, or the error of a damaged frame.
    """

    number: int
    time_s: float
    until_s: float
    scene: int
    pixels: Array | VideoError


def samples(
    path: bytes, *, per_second: float | None, every: int = 1, start_s: float = 0.0, end_s: float | None = None
) -> Generator[Sample, None, None]:
    """The frames of a file to label: at most one per slot of time, even if the frame rate varies, or every n-th one.

    Raises: VideoError, also if the file ends early; Skipped; EmptyImage.
    """
    with _open_file(path) as video:
        cuts, scene, slot, count, time_s = Cuts(), 0, 0, 0, 0.0
        pending: Sample | None = None
        error: VideoError | None = None
        try:
            for frame in video:
                count, time_s = frame.number + 1, round(frame.time_s, 3)
                if end_s is not None and time_s >= end_s:
                    break
                if time_s < start_s:
                    continue
                is_cut = cuts.is_cut(frame)
                scene += is_cut
                due = math.floor(time_s * per_second + 1e-6) if per_second else frame.number // every
                if pending is not None and (is_cut or due >= slot):
                    yield replace(pending, until_s=time_s)
                    pending = None
                if due >= slot:
                    slot = due + 1
                    pending = Sample(frame.number, time_s, time_s, scene, _pixels_or_error(frame))
            else:
                error = video.missing_end(count, time_s)
        except VideoError as ending:
            error = VideoError(f"video {ending}. Earlier frames are labeled")
        if pending is not None:
            yield replace(pending, until_s=video.end_s(time_s) if end_s is None else min(end_s, video.end_s(time_s)))
        if error is not None:
            raise error
        if not slot:
            raise OutsidePart(f"no frame between --start and --end: the last one that was read is at {time_s:g} s")


def batches_ahead(decoded: Generator[Sample, None, None], size: int) -> Iterator[list[Sample]]:
    """A few samples at a time, while another thread decodes the next ones; those before an error come before it."""
    batch: list[Sample] = []
    error: Exception | None = None
    with closing(decoded), ThreadPoolExecutor(1, thread_name_prefix="decode") as thread:
        pending = deque(thread.submit(next, decoded, None) for _ in range(size))
        while True:
            try:
                sample = pending.popleft().result()
            except Exception as ending:  # noqa: BLE001  # raised below
                sample, error = None, ending
            if sample is not None:
                batch.append(sample)
                pending.append(thread.submit(next, decoded, None))
            if batch and (sample is None or len(batch) == size):
                yield batch
                batch = []
            if sample is None:
                break
    if error is not None:
        raise error


def expected_samples(
    path: bytes, *, per_second: float | None, every: int = 1, start_s: float = 0.0, end_s: float | None = None
) -> int:
    """Approximate number of samples, from the header of a file; 0 if unknown."""
    try:
        with _open_file(path) as video:
            seconds, rate = video.duration_s or 0.0, video.fps
    except (VideoError, EmptyImage, OSError):  # A pipe that replaced the file is empty; FFmpeg would wait for it.
        return 0
    seconds = max(0.0, min(seconds, end_s or seconds) - start_s)
    return round(seconds * min(per_second, rate) if per_second else seconds * rate / every)


def _open_file(path: bytes) -> "Video":
    """Open a file. Raises: VideoError, NotAVideo, EmptyImage."""
    name = Path(os.fsdecode(path))
    if not name.stat().st_size:
        raise EmptyImage("empty file: no bytes to read")
    try:
        return Video(path)
    except Skipped:
        raise
    except VideoError as error:
        with name.open("rb") as file:
            if name.suffix.lower() == ".ts" and file.read(1) != b"\x47":  # the first byte of a transport stream
                raise NotAVideo("a source file of TypeScript, or another file that is not a video") from error
        raise VideoError(f"video {error}") from error


def _pixels_or_error(frame: VideoFrame) -> Array | VideoError:
    try:
        return frame.pixels()
    except VideoError as error:
        return error


def _turned(pixels: Array, decoded: Any) -> Array:
    """Rotate and mirror pixels by the display matrix of FFmpeg: nine int32 in rows, of which four are used here."""
    try:
        side_data = decoded.side_data.get(SideData.DISPLAYMATRIX)
    except ValueError:  # PyAV 18.1 lacks types of FFmpeg 8, as in spatial videos; without these, it has only the angle
        return np.ascontiguousarray(np.rot90(pixels, round(decoded.rotation / 90)))
    if side_data is None:
        return pixels
    x_to_x, x_to_y, _, y_to_x, y_to_y = np.frombuffer(bytes(side_data), dtype=np.int32, count=5).tolist()
    if abs(x_to_y) > abs(x_to_x):  # a quarter turn
        pixels, x_to_x, y_to_y = pixels.swapaxes(0, 1), y_to_x, x_to_y
    return np.ascontiguousarray(pixels[:: -1 if y_to_y < 0 else 1, :: -1 if x_to_x < 0 else 1])


class Video:
    """An opened video: its frames in order, from the container's default video stream; covers are not frames.

    Attributes:
        fps: the stated mean frame rate, or 25.
        duration_s: the stated length of the video stream itself, or None.
        repeated_s: time of the last packet that only repeats a frame, which Theora has; such frames are left out.
    """

    def __init__(self, source: str | bytes, *, timeout_s: float | None = None) -> None:
        """Open a file by name, or a network stream by URL. Raises: VideoError.

        Args:
            source: the path of a file as the system has it, or a URL, such as `rtsp://...`.
            timeout_s: for opening and for each read of a URL.
        """
        self._cleanup = ExitStack()
        try:
            self._container = self._cleanup.enter_context(_open(source, timeout_s, self._cleanup))
        except (av.error.FFmpegError, OSError, ValueError) as error:
            self.close()
            raise VideoError(f"cannot be opened: not a video that FFmpeg reads ({_reason(error)})") from error
        self._start_s = (self._container.start_time or 0) / av.time_base
        self._has_seams = self._container.format.name in _WITH_SEAMS
        self.repeated_s = 0.0
        videos = [
            stream
            for stream in self._container.streams.video
            if not stream.disposition & Disposition.attached_pic and stream.codec_context is not None
        ]
        if not videos:
            self.close()
            raise NoVideo("no video: the file has only sound, a cover picture or other data")
        self._stream = next((stream for stream in videos if stream.disposition & Disposition.default), videos[0])
        self._stream.thread_type = "AUTO"
        rate = float(self._stream.average_rate or self._stream.guessed_rate or 0)
        self.fps = rate if 0 < rate <= _MAX_FPS else _DEFAULT_FPS
        self.duration_s = self._duration_s()

    def _duration_s(self) -> float | None:
        name, is_only = self._container.format.name, len(self._container.streams) == 1
        if self._stream.duration and self._stream.time_base and (is_only or name != "asf"):
            return float(self._stream.duration * self._stream.time_base)
        # Matroska states when a stream ends, not how long it is
        start_s = self._start_s if name.startswith("matroska") else 0.0
        stated = self._stream.metadata.get("DURATION", "")  # of Matroska, hours:minutes:seconds
        if parts := re.fullmatch(r"(\d+):(\d+):(\d+\.?\d*)", stated, re.ASCII):
            return 3600 * int(parts[1]) + 60 * int(parts[2]) + float(parts[3]) - start_s
        if self._container.duration and is_only:  # otherwise, maybe that of the sound
            return self._container.duration / av.time_base - start_s
        return None

    def end_s(self, last_s: float) -> float:
        """Time at which the last frame ends, from the time at which it begins."""
        end_s = last_s + 1 / self.fps
        return end_s if self.duration_s is None or self.duration_s <= last_s else min(end_s, self.duration_s)

    def missing_end(self, frames: int, last_s: float) -> VideoError | None:
        """Compare what was read with the stated length of the video stream; None if it is whole."""
        if frames == 0:
            return VideoError("no frame of the video can be decoded")
        if self.duration_s is None:
            return None
        stated_s, read_s = self.duration_s, max(last_s, self.repeated_s) + 1 / self.fps
        # Check both: some formats estimate the number of frames from the length, others the length from the frame rate.
        lacks_frames = frames < stated_s * self.fps * (1 - _MISSING_SHARE)
        if not (lacks_frames and stated_s - read_s > max(_MISSING_S, stated_s * _MISSING_SHARE)):
            return None
        ends = f"video ends after {read_s:.1f} of {stated_s:.1f} s"
        return VideoError(f"{ends}: truncated or damaged. Earlier frames are labeled")

    @property
    def is_live(self) -> bool:
        """Whether the source is a stream without an end."""
        return self._container.duration is None

    def __iter__(self) -> Iterator[VideoFrame]:
        """Frames in order of presentation. Raises: VideoError, if the source fails before its end."""
        aspect = self._stream.sample_aspect_ratio or Fraction(1)
        offset_s, last_s = -self._start_s, -1 / self.fps
        for number, decoded in enumerate(self._decoded()):
            next_s = last_s + 1 / self.fps
            time_s = next_s if decoded.time is None else float(decoded.time) + offset_s
            if number and (time_s <= last_s or (self._has_seams and time_s - last_s > _SEAM_S)):
                offset_s, time_s = offset_s + next_s - time_s, next_s
            last_s = max(0.0, time_s)
            yield VideoFrame(number, last_s, decoded, aspect)

    def _decoded(self) -> Iterator[Any]:
        """Frames of all packets; packets without a frame that can be decoded are left out. Raises: VideoError."""
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    return
                if not packet.size and packet.pts is not None:
                    self.repeated_s = float(packet.pts * packet.time_base)
                    continue
                yield from packet.decode()
            except (av.error.InvalidDataError, av.error.ArgumentError):  # of one packet
                continue
            except (av.error.FFmpegError, OSError) as error:
                raise VideoError(f"cannot be read to its end ({_reason(error)})") from error

    def close(self) -> None:
        """Release the file or the connection."""
        self._cleanup.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(source: str | bytes, timeout_s: float | None, cleanup: ExitStack) -> InputContainer:
    if isinstance(source, str) and "://" in source:
        return av.open(source, "r", timeout=timeout_s, options={"rtsp_transport": "tcp"})
    # absolute, because FFmpeg takes `12:30.mp4` for the URL of a protocol
    path = Path(os.fsdecode(source)).absolute()
    try:
        str(path).encode()
    except UnicodeEncodeError:  # a name that is not UTF-8
        return av.open(cleanup.enter_context(path.open("rb")), "r")
    return av.open(str(path), "r")


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
