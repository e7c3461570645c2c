"""Frames of a video, in order.

A video is read sequentially by one thread. Frames labeled by an earlier run are skipped without decoding them, if the
format allows.
"""

import math
import os.path
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from mien.app.inference.video import Cuts, NoVideo, Video, VideoError, VideoFrame
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.reading import open_file
from mien.app.labeling.records import Failure, Input, Status
from mien.data.errors import MienError

IsDone = Callable[[Input], bool]

# A video is truncated if more than this share of its stated length, and more than this many seconds, are missing.
_MISSING_SHARE: Final = 0.1
_MISSING_S: Final = 0.5


class ContainerError(MienError):
    """A video that cannot be read to its end, or has nothing to label."""

    def __init__(self, message: str, reason: str = "corrupt", status: Status = "error") -> None:
        super().__init__(message)
        self.failure = Failure(reason, message, status)


def expected_frames(path: bytes, options: LabelOptions) -> int:
    """Approximate number of frames to sample, from the header of the video; 0 if unknown."""
    try:
        with Video(path) as video:
            seconds, rate = video.duration_s or 0.0, video.fps
    except VideoError:
        return 0
    seconds = max(0.0, min(seconds, options.end or seconds) - options.start)
    per_second = options.frames_per_s
    return round(seconds * min(per_second, rate) if per_second else seconds * rate / (options.every or 1))


def _open_video(name: str, path: bytes) -> Video:
    """Open a video. Raises: ContainerError."""
    try:
        return Video(path)
    except NoVideo as error:
        raise ContainerError(str(error), "no_video", "skipped") from error
    except VideoError as error:
        if name.lower().endswith(".ts"):
            with open_file(path) as file:
                if file.read(1) != b"\x47":  # of a transport stream
                    message = "a source file of TypeScript, or another file that is not a video"
                    raise ContainerError(message, "not_an_image", "skipped") from error
        raise ContainerError(f"video {error}") from error


class _Sampling:
    """The choice of frames; `scene` is the number of cuts so far, and `slot` the next one to fill."""

    def __init__(self, options: LabelOptions) -> None:
        self._options, self._cuts = options, Cuts()
        self.scene = self.slot = 0

    def is_due(self, frame: VideoFrame, time_s: float) -> bool:
        """Return whether to label the next frame."""
        self.scene += self._cuts.is_cut(frame)
        # At most one frame per time slot, even if the frame rate varies.
        per_second = self._options.frames_per_s
        due = math.floor(time_s * per_second + 1e-6) if per_second else frame.number // (self._options.every or 1)
        if due < self.slot:
            return False
        self.slot = due + 1
        return True


def frames(container: Input, path: bytes, options: LabelOptions, is_done: IsDone) -> Iterator[tuple[Input, bool]]:
    """Frames to label of the video at a local path, and whether they are done; these are not decoded.

    Raises: ContainerError, OSError.
    """
    if not os.path.getsize(path):
        raise ContainerError("empty file: no bytes to read", "empty")
    with _open_video(container.name, path) as video:
        sampling, count, time_s = _Sampling(options), 0, 0.0
        try:
            for frame in video:
                count, time_s = frame.number + 1, round(frame.time_s, 3)
                if time_s < options.start:
                    continue
                if options.end is not None and time_s >= options.end:
                    break
                if sampling.is_due(frame, time_s):
                    child = replace(container, frame=frame.number, time_s=time_s, scene=sampling.scene)
                    child = replace(child, parent=container.row, row=None)
                    done = is_done(child)
                    if not done:
                        try:
                            child = replace(child, pixels=frame.pixels())
                        except VideoError as error:
                            child = replace(child, failure=Failure("corrupt", str(error)))
                    yield child, done
            else:
                _check_end(video, count, time_s)
        except VideoError as error:
            raise ContainerError(f"video {error}. Earlier frames are labeled") from error
    if not sampling.slot:
        last = f"the last one that was read is at {time_s:g} s"
        raise ContainerError(f"no frame between --start and --end: {last}", "outside_part", "skipped")


def _check_end(video: Video, frames: int, last_s: float) -> None:
    """Compare the length with the stated one of the video stream. Raises: ContainerError."""
    if frames == 0:
        raise ContainerError("no frame of the video can be decoded")
    if video.duration_s is None:
        return
    stated_s, read_s = video.duration_s, max(last_s, video.repeated_s) + 1 / video.fps
    # Check both: some formats estimate the number of frames from the length, others the length from the frame rate.
    lacks_frames = frames < stated_s * video.fps * (1 - _MISSING_SHARE)
    if lacks_frames and stated_s - read_s > max(_MISSING_S, stated_s * _MISSING_SHARE):
        raise ContainerError(
            f"video ends after {read_s:.1f} of {stated_s:.1f} s: truncated or damaged. Earlier frames are labeled"
        )
