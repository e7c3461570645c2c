"""Pixels of labeled images, read from their sources."""

from mien.app.labeling.containers import BrokenContainer, read_frame, read_member
from mien.app.labeling.files import LabelingError
from mien.app.labeling.options import MAX_PIXELS
from mien.app.labeling.reading import open_file
from mien.app.labeling.records import Result
from mien.data import contract
from mien.data.contract import Array, DecodeError


def source_pixels(image: Result) -> Array:
    """Read the pixels of an image from its source, (H, W, 3) uint8 RGB.

    Raises: LabelingError, if the source is gone or was changed.
    """
    try:
        if image.input.kind == "file":
            with open_file(image.input.path) as file:
                pixels = contract.decode(file.read(), max_pixels=MAX_PIXELS)
        elif image.input.is_frame:
            pixels = read_frame(image.input)
        else:
            pixels = contract.decode(read_member(image.input), max_pixels=MAX_PIXELS)
    except (OSError, BrokenContainer, DecodeError) as error:
        raise LabelingError(f"{image.input.name} can no longer be read ({error}): label the folder again.") from error
    if pixels.shape[:2] != (image.height, image.width):
        raise LabelingError(f"{image.input.name} is not the image that was labeled: label the folder again.")
    return pixels
