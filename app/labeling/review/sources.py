"""Pixels of labeled images, read from their sources."""

from mien.app.labeling.containers import BrokenContainer, read_member
from mien.app.labeling.files import LabelingError
from mien.app.labeling.journal import LabeledImage
from mien.app.labeling.reading import open_file
from mien.app.labeling.request import MAX_PIXELS
from mien.data import contract
from mien.data.contract import Array, DecodeError


def source_pixels(image: LabeledImage) -> Array:
    """Read the pixels of an image from its source, (H, W, 3) uint8 RGB.

    Raises: LabelingError, if the source is gone or was changed.
    """
    try:
        if image.kind == "file":
            with open_file(image.path) as file:
                payload: bytes | Array = file.read()
        else:
            payload = read_member(image.path, image.kind, image.member or 0, image.frame)
        pixels = contract.decode(payload, max_pixels=MAX_PIXELS) if isinstance(payload, bytes) else payload
    except (OSError, BrokenContainer, DecodeError) as error:
        raise LabelingError(f"{image.name} can no longer be read ({error}): label the folder again.") from error
    if pixels.shape[:2] != (image.height, image.width):
        raise LabelingError(f"{image.name} is not the image that was labeled: label the folder again.")
    return pixels
