"""Pixels of labeled images, read from their sources."""

from mien.app.labeling.containers import BrokenContainer, FrameReader, read_member
from mien.app.labeling.files import LabelingError
from mien.app.labeling.options import MAX_PIXELS
from mien.app.labeling.reading import open_file
from mien.app.labeling.records import Input, Result
from mien.data import contract
from mien.data.contract import Array, DecodeError


class SourceReader:
    """Reads images from their sources; the frames of a video are decoded once if they are read in order."""

    def __init__(self) -> None:
        self._video: FrameReader | None = None

    def close(self) -> None:
        """Close the last video."""
        if self._video is not None:
            self._video.close()

    def pixels(self, image: Result) -> Array:
        """The pixels of an image, (H, W, 3) uint8 RGB. Raises: LabelingError, if its source is gone or was changed."""
        name = image.input.name
        try:
            pixels = self._read(image.input)
        except (OSError, BrokenContainer, DecodeError) as error:
            raise LabelingError(f"{name} can no longer be read ({error}): label the folder again.") from error
        if pixels.shape[:2] != (image.height, image.width):
            raise LabelingError(f"{name} is not the image that was labeled: label the folder again.")
        return pixels

    def _read(self, item: Input) -> Array:
        if item.is_frame:
            if self._video is None or self._video.path != item.path or self._video.next_frame > item.frame:
                self.close()
                self._video = FrameReader(item.path)
            return self._video.read(item.frame)
        if item.kind != "file":
            return contract.decode(read_member(item), max_pixels=MAX_PIXELS)
        with open_file(item.path) as file:
            return contract.decode(file.read(), max_pixels=MAX_PIXELS)
