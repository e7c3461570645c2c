"""Pixels of labeled images, read from their sources."""

from contextlib import ExitStack
from io import BytesIO

import cv2

from mien.app.errors import PayloadTooLarge
from mien.app.inference.decode import open_video
from mien.app.labeling.containers import BrokenContainer, read_member, read_page
from mien.app.labeling.files import LabelingError
from mien.app.labeling.options import MAX_BYTES, MAX_PIXELS
from mien.app.labeling.raw import decode_image
from mien.app.labeling.reading import local_file, read_file
from mien.app.labeling.records import Input, Result
from mien.data.contract import Array, DecodeError


class SourceReader:
    """Reads images from their sources; the frames of a video are decoded once if they are read in order."""

    def __init__(self) -> None:
        self._opened = ExitStack()
        self._video: cv2.VideoCapture | None = None
        self._path, self._next_frame = b"", 0

    def close(self) -> None:
        """Close the last video."""
        self._opened.close()

    def pixels(self, image: Result) -> Array:
        """The pixels of an image, (H, W, 3) uint8 RGB. Raises: LabelingError, if its source is gone or was changed."""
        name = image.input.name
        try:
            pixels = self._read(image.input)
        except (OSError, BrokenContainer, DecodeError, PayloadTooLarge) as error:
            raise LabelingError(f"{name} can no longer be read ({error}): label the folder again.") from error
        if pixels.shape[:2] != (image.height, image.width):
            raise LabelingError(f"{name} is not the image that was labeled: label the folder again.")
        return pixels

    def _read(self, item: Input) -> Array:
        if item.is_frame and item.kind == "video":
            return self._frame(item)
        if item.is_frame:
            return read_page(item.path if item.kind == "pages" else BytesIO(read_member(item)), item.frame, MAX_PIXELS)
        payload = read_file(item.path, MAX_BYTES) if item.kind == "file" else read_member(item)
        return decode_image(item.name, payload, MAX_PIXELS)

    def _frame(self, item: Input) -> Array:
        if self._video is None or self._path != item.path or self._next_frame > item.frame:
            self.close()
            self._path, self._next_frame = item.path, 0
            self._video = open_video(self._opened.enter_context(local_file(item.path)))
            self._opened.callback(self._video.release)
        while self._next_frame <= item.frame and self._video.grab():
            self._next_frame += 1
        read, pixels = self._video.retrieve()
        if not read or self._next_frame <= item.frame:
            raise BrokenContainer(f"frame {item.frame} cannot be read")
        return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
