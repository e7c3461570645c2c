"""Pixels of labeled images, read from their sources."""

import hashlib
import os
from contextlib import ExitStack
from functools import lru_cache
from io import BytesIO

import cv2

from mien.app.errors import PayloadTooLarge
from mien.app.inference.decode import open_video
from mien.app.labeling.containers import BrokenContainer, read_member, read_page
from mien.app.labeling.files import LabelingError
from mien.app.labeling.options import MAX_BYTES, MAX_PIXELS
from mien.app.labeling.raw import decode_raw, is_raw
from mien.app.labeling.reading import file_sha256, local_file, read_file
from mien.app.labeling.records import Input, Result
from mien.app.labeling.store import is_url
from mien.data import contract
from mien.data.contract import Array, DecodeError


class SourceReader(ExitStack):
    """Reads images from their sources; the frames of a video are decoded once if they are read in order."""

    def __init__(self) -> None:
        super().__init__()
        self._video: cv2.VideoCapture | None = None
        self._path, self._next_frame, self._sha256 = b"", 0, ""

    def pixels(self, image: Result) -> Array:
        """The pixels of an image, (H, W, 3) uint8 RGB. Raises: LabelingError, if its source is gone or was changed."""
        name = image.input.name
        try:
            pixels, sha256 = self._read(image.input)
        except (OSError, BrokenContainer, DecodeError, PayloadTooLarge) as error:
            reason = getattr(error, "strerror", None) or error  # an OSError also names its path, as bytes
            raise LabelingError(f"{name} can no longer be read ({reason}): label the folder again.") from error
        if sha256 != image.sha256:
            raise LabelingError(f"{name} is not the image that was labeled: label the folder again.")
        return pixels

    def _read(self, item: Input) -> tuple[Array, str]:
        """The pixels, and the SHA-256 of the file."""
        if item.is_frame and item.kind == "video":
            return self._frame(item), self._sha256
        if item.kind == "pages":
            if self._path != item.path:
                self._path, self._video, self._sha256 = item.path, None, _sha256(item.path)
            return read_page(item.path, item.frame, MAX_PIXELS), self._sha256
        payload = read_file(item.path, MAX_BYTES) if item.kind == "file" else read_member(item)
        sha256 = hashlib.sha256(payload).hexdigest()
        if item.is_frame:
            return read_page(BytesIO(payload), item.frame, MAX_PIXELS), sha256
        decode = decode_raw if is_raw(item.name) else contract.decode
        return decode(payload, max_pixels=MAX_PIXELS), sha256

    def _frame(self, item: Input) -> Array:
        if self._video is None or self._path != item.path or self._next_frame > item.frame:
            self.close()
            self._path, self._next_frame = item.path, 0
            path = self.enter_context(local_file(item.path))
            self._sha256, self._video = _sha256(path), open_video(path)
            self.callback(self._video.release)
        while self._next_frame <= item.frame and self._video.grab():
            self._next_frame += 1
        read, pixels = self._video.retrieve()
        if not read or self._next_frame <= item.frame:
            raise BrokenContainer(f"frame {item.frame} cannot be read")
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)


def _sha256(path: bytes) -> str:
    """SHA-256 of a file; a local one is read again only after a change, because a video has many frames to show."""
    if is_url(path):
        return file_sha256(path)
    status = os.stat(path)
    return _hashed(path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


@lru_cache(maxsize=256)
def _hashed(path: bytes, _size: int, _mtime_ns: int, _ctime_ns: int) -> str:
    return file_sha256(path)
