"""Formats that are known by their name only: TGA, and camera raw.

Of camera raw, the full-size preview that cameras embed is labeled, or the developed image (extra `raw`).
"""

import importlib.util
import io
import os
from typing import Any, Final

import numpy as np
from PIL import Image

from mien.app.labeling.reading import RAW_EXTENSIONS
from mien.data import contract
from mien.data.contract import Array, DecodeError, ImageTooLarge, UnsupportedImage

# A preview with at least this part of the long side of the raw image is labeled; a smaller one is a thumbnail.
_FULL_SIZE: Final = 0.5
_ORIENTATION: Final = 0x0112
_QUARTER_TURNS: Final = {3: 2, 5: 1, 6: 3}  # counterclockwise, of LibRaw's `flip`


def is_named_format(name: str) -> bool:
    """Return whether the format is known by the name: Pillow would read the thumbnail of camera raw."""
    return os.path.splitext(name)[1].lower() in (*RAW_EXTENSIONS, ".tga")


def decode_named(name: str, payload: bytes, max_pixels: int) -> Array:
    """Pixels of a TGA or camera raw file, (H, W, 3) uint8 RGB, upright. Raises: DecodeError and its subclasses."""
    if name.lower().endswith(".tga"):
        return contract.decode(payload, max_pixels=max_pixels, chosen=("TGA",))
    return decode_raw(payload, max_pixels)


def decode_raw(payload: bytes, max_pixels: int) -> Array:
    """Pixels of a camera raw file, (H, W, 3) uint8 RGB, upright. Raises: DecodeError and its subclasses."""
    if not payload:
        raise DecodeError("empty file: no bytes to decode")
    if importlib.util.find_spec("rawpy") is None:
        raise UnsupportedImage("camera raw needs rawpy: `pip install rawpy`, or export the photo as JPEG, TIFF or PNG")
    import rawpy

    try:
        with rawpy.imread(io.BytesIO(payload)) as raw:
            sizes = raw.sizes
            if sizes.width * sizes.height > max_pixels:
                raise ImageTooLarge(f"image of {sizes.width}x{sizes.height} px: the limit is {max_pixels:,} pixels")
            preview = _preview(raw, max_pixels)
            if preview is not None and max(preview.shape) >= _FULL_SIZE * max(sizes.width, sizes.height):
                return preview
            return np.ascontiguousarray(raw.postprocess(use_camera_wb=True, output_bps=8))
    except rawpy.LibRawFileUnsupportedError as error:
        raise UnsupportedImage(f"not a camera raw file that LibRaw reads ({error})") from error
    except rawpy.LibRawError as error:
        raise DecodeError(f"corrupt or truncated camera raw: {error}") from error


def _preview(raw: Any, max_pixels: int) -> Array | None:
    """The embedded preview, upright; None if there is none that can be read."""
    import rawpy

    try:
        preview = raw.extract_thumb()
    except (rawpy.LibRawNoThumbnailError, rawpy.LibRawUnsupportedThumbnailError):
        return None
    if preview.format == rawpy.ThumbFormat.JPEG:
        try:
            pixels = contract.decode(preview.data, max_pixels=max_pixels)
        except DecodeError:
            return None
        with Image.open(io.BytesIO(preview.data)) as image:
            if _ORIENTATION in image.getexif():  # applied by the decoder
                return pixels
    else:
        pixels = np.asarray(preview.data)
    return np.ascontiguousarray(np.rot90(pixels, _QUARTER_TURNS.get(raw.sizes.flip, 0)))
