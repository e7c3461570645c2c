"""Images of more than 8 bits per color that use a small part of their range: stretched by percentiles for serving.

Thermal cameras, microscopes and scanners write 10 to 14 bits into 16, or counts and floats without a limit; scaled by
the range of their type, such images are black. Training reads no such images and does not stretch (`decode`).
"""

from contextlib import suppress
from typing import Final

import cv2
import numpy as np
from PIL import Image

from mien.data.contract.align import Array
from mien.data.contract.decode import (
    BROKEN,
    MAX_PIXELS,
    Levels,
    bits_of,
    decode,
    is_deep,
    open_image,
    orientation_of,
    oriented,
    raw_values,
    to_8_bit,
    upright_rgb,
)

_PERCENTILES: Final = (0.5, 99.5)
# An image that uses less than this part of the range is stretched: 14 bits in 16 are.
_NARROW: Final = 0.25
_SAMPLE_PX: Final = 1000
_ROWS: Final = 64


def narrow_levels(image: Image.Image) -> Levels | None:
    """The values that become black and white in an open gray image; None if it needs no stretching."""
    if not is_deep(image):
        return None
    try:
        image.load()
    except (MemoryError, *BROKEN):  # raised again, and reported, when the pixels are read
        return None
    size = min(image.width, _SAMPLE_PX), min(image.height, _SAMPLE_PX)
    values = raw_values(image, image.resize(size, Image.Resampling.NEAREST))
    return _levels(values, 1.0 if image.mode == "F" else 65535.0)


def _levels(values: Array, limit: float) -> Levels | None:
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    low, high = (float(value) for value in np.percentile(known, _PERCENTILES))
    is_narrow = low < 0 or high > limit or high - low < _NARROW * limit
    return Levels(low, high) if is_narrow and high > low else None


def decode_stretched(
    payload: bytes, *, max_pixels: int = MAX_PIXELS, reduce_to_px: int | None = None, colors: bool = True
) -> tuple[Array, bool]:
    """Decode as `decode`, with a narrow range stretched; and whether it was.

    Args:
        payload, max_pixels, reduce_to_px: see `decode`, as for errors.
        colors: whether to stretch color images, too, which are decoded again by OpenCV: Pillow has 8 bits of them.
    """
    with open_image(payload, max_pixels) as image:
        return decode_open(image, payload, max_pixels=max_pixels, reduce_to_px=reduce_to_px, colors=colors)


def decode_open(
    image: Image.Image, payload: bytes, *, max_pixels: int, reduce_to_px: int | None, colors: bool
) -> tuple[Array, bool]:
    """Decode an open image as `decode_stretched`, and close it early to free memory."""
    levels = narrow_levels(image)
    has_deep_colors = colors and not is_deep(image) and bits_of(image, payload) == 16
    # OpenCV turns TIFF by itself, as Pillow
    orientation = 1
    if has_deep_colors:
        with suppress(MemoryError, *BROKEN):
            orientation = orientation_of(image)
    pixels = upright_rgb(image, max_pixels=max_pixels, reduce_to_px=reduce_to_px, levels=levels, keep=False)
    if not has_deep_colors or _levels(pixels[:: max(1, len(pixels) // _SAMPLE_PX)], 255.0) is None:
        return pixels, levels is not None
    del pixels
    values = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None or values.dtype != np.uint16 or values.ndim != 3:
        return decode(payload, max_pixels=max_pixels), False
    levels = _levels(values[:: max(1, len(values) // _SAMPLE_PX), :, :3], 65535.0)
    if levels is None:
        return decode(payload, max_pixels=max_pixels), False
    stretched: Array = np.empty((*values.shape[:2], 3), np.uint8)
    for top in range(0, len(values), _ROWS):
        rows = values[top : top + _ROWS]
        rgb = to_8_bit(rows[..., 2::-1], levels)
        if rows.shape[2] == 4:  # on white
            opacity = rows[..., 3:].astype(np.float32) / 65535
            rgb = np.rint(rgb * opacity + 255 * (1 - opacity)).astype(np.uint8)
        stretched[top : top + _ROWS] = rgb
    return oriented(stretched, orientation), True
