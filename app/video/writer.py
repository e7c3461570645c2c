"""Writing of annotated videos by PyAV, as H.264 without sound."""

from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import av
import cv2

from mien.data.contract import Array

_CLOCK: Final = 90_000  # ticks per second
_ENCODER: Final = {"crf": "21", "preset": "veryfast"}  # of libx264


class VideoWriter:
    """A video of frames that keep their times."""

    def __init__(self, path: Path, *, start_s: float = 0.0) -> None:
        """Create the file, which begins at `start_s` of the times. Raises: FFmpegError."""
        self._start_s, self._last_tick = start_s, -1
        # absolute, because FFmpeg takes `12:30.mp4` for the URL of a protocol
        self._container = av.open(str(path.absolute()), "w", format="mp4", options={"movflags": "+faststart"})
        self._stream: Any = None

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

    def close(self) -> None:
        """Finish the file. Raises: FFmpegError."""
        with closing(self._container):
            if self._stream is not None:
                self._container.mux(self._stream.encode(None))
