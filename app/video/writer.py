"""Writing of annotated videos by PyAV: H.264, and AAC for the sound of another file."""

import math
from collections.abc import Iterator
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import cv2

from mien.app.video.reader import Sound
from mien.data.contract import Array

_CLOCK: Final = 90_000  # ticks per second
_SOUND_RATES: Final = av.Codec("aac", "w").audio_rates or ()  # of AAC, samples per second
_ENCODER: Final = {"crf": "21", "preset": "veryfast"}  # of libx264


class VideoWriter:
    """A video of frames that keep their times."""

    def __init__(
        self,
        path: Path,
        *,
        sound_of: bytes | None = None,
        start_s: float = 0.0,
        end_s: float | None = None,
    ) -> None:
        """Create the file. Raises: VideoError, FFmpegError.

        Args:
            sound_of: path of a file whose sound is added.
            start_s: the part of the times and of the sound that is written; end_s: None for all until the end.
        """
        self._start_s, self._last_tick = start_s, -1
        # absolute, because FFmpeg takes `12:30.mp4` for the URL of a protocol
        self._container = av.open(str(path.absolute()), "w", format="mp4", options={"movflags": "+faststart"})
        self._stream: Any = None
        self._sound = iter(()) if sound_of is None else _sound(self._container, sound_of, start_s, end_s)
        self._next_sound = next(self._sound, None)

    def add(self, image: Array, time_s: float) -> None:
        """Add a frame, (H, W, 3) uint8 RGB, at its time, later than that of the frame before. Raises: FFmpegError.

        The first frame has the size of the video, to which others are resized.
        """
        if self._stream is None:
            self._stream = self._container.add_stream("libx264", options=_ENCODER)
            # H.264 has half as many colors as pixels in a row and a column
            self._stream.width, self._stream.height = (max(2, side // 2 * 2) for side in image.shape[1::-1])
            self._stream.pix_fmt, self._stream.time_base = "yuv420p", Fraction(1, _CLOCK)
            self._stream.codec_context.time_base = Fraction(1, _CLOCK)
        size = (self._stream.width, self._stream.height)
        if image.shape[1::-1] != size:
            image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        self._last_tick = max(self._last_tick + 1, round((time_s - self._start_s) * _CLOCK))
        frame.pts, frame.time_base = self._last_tick, Fraction(1, _CLOCK)
        self._container.mux(self._stream.encode(frame))
        self._mux_sound(time_s - self._start_s)

    def close(self) -> None:
        """Add the rest of the sound, and finish the file. Raises: FFmpegError."""
        with closing(self._container):
            if self._stream is not None:
                self._container.mux(self._stream.encode(None))
                self._mux_sound(math.inf)

    def _mux_sound(self, until_s: float) -> None:
        while self._next_sound is not None and self._next_sound[0] <= until_s:
            self._container.mux(self._next_sound[1])
            self._next_sound = next(self._sound, None)


def _sound(container: Any, source: bytes, start_s: float, end_s: float | None) -> Iterator[tuple[float, Any]]:
    """Encoded packets of the sound of a file, which is added to a container, with their times."""
    with Sound(source) as sound:
        if not sound.rate:
            return
        rate = min(_SOUND_RATES, key=lambda possible: abs(possible - sound.rate))
        stream = container.add_stream("aac", rate=rate, layout=sound.layout)
        resamplers = dict[tuple[object, ...], Any]()
        for frame, time_s in sound.frames():
            if time_s < start_s or (end_s is not None and time_s >= end_s):
                continue
            frame.pts, frame.time_base = round((time_s - start_s) * frame.sample_rate), Fraction(1, frame.sample_rate)
            kind = (frame.sample_rate, frame.layout.name, frame.format.name)  # which changes within a broadcast
            if kind not in resamplers:
                resamplers[kind] = av.AudioResampler(stream.format, stream.layout, rate)
            for part in resamplers[kind].resample(frame):
                for packet in stream.encode(part):
                    yield time_s - start_s, packet
        for packet in stream.encode(None):
            yield 0.0, packet
