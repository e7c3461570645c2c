"""Pixels of labeled images, read from their sources."""

import hashlib
import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import lru_cache

from mien.app.inference.video import Video, VideoError, VideoFrame
from mien.app.labeling.containers import ContainerError
from mien.app.labeling.files import LabelingError
from mien.app.labeling.options import MAX_BYTES, MAX_PIXELS
from mien.app.labeling.reading import file_sha256, local_file, read_file
from mien.app.labeling.records import Input, Result
from mien.app.labeling.store import is_url
from mien.data.contract import Array, DecodeError, decode


class SourceReader(ExitStack):
    """Reads images from their sources; the frames of a video are decoded once if they are read in order."""

    def __init__(self) -> None:
        super().__init__()
        self._frames: Iterator[VideoFrame] = iter(())
        self._path, self._next_frame, self._sha256 = b"", 0, ""

    def pixels(self, image: Result) -> Array:
        """The pixels of an image, (H, W, 3) uint8 RGB. Raises: LabelingError, if its source is gone or was changed."""
        name = image.input.name
        try:
            pixels, sha256 = self._read(image.input)
        except (OSError, ContainerError, DecodeError) as error:
            reason = getattr(error, "strerror", None) or error  # an OSError also names its path, as bytes
            raise LabelingError(f"{name} can no longer be read ({reason}): label the folder again.") from error
        if sha256 != image.sha256:
            raise LabelingError(f"{name} is not the image that was labeled: label the folder again.")
        return pixels

    def _read(self, item: Input) -> tuple[Array, str]:
        """The pixels, and the SHA-256 of the file."""
        if item.is_frame:
            return self._frame(item), self._sha256
        payload = read_file(item.path, MAX_BYTES)
        return decode(payload, max_pixels=MAX_PIXELS), hashlib.sha256(payload).hexdigest()

    def _frame(self, item: Input) -> Array:
        try:
            if self._path != item.path or self._next_frame > item.frame:
                self.close()
                self._path, self._next_frame = item.path, 0
                path = self.enter_context(local_file(item.path))
                self._sha256, self._frames = _sha256(path), iter(self.enter_context(Video(path)))
            for frame in self._frames:
                self._next_frame = frame.number + 1
                if frame.number == item.frame:
                    return frame.pixels()
        except VideoError as error:
            raise ContainerError(f"video {error}") from error
        raise ContainerError(f"frame {item.frame} cannot be read")


def _sha256(path: bytes) -> str:
    """SHA-256 of a file; a local one is read again only after a change, because a video has many frames to show."""
    if is_url(path):
        return file_sha256(path)
    status = os.stat(path)
    return _hashed(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=256)
def _hashed(path: bytes, _size: int, _mtime_ns: int, _ctime_ns: int) -> str:
    return file_sha256(path)
