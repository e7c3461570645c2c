"""TIFF that neither Pillow nor OpenCV writes: unsigned 32 bits, separate planes, orientations."""

import struct

import numpy as np

from mien.data.contract import Array
from tests.support.camera_raw import directory


def tiff(values: Array, *, planes: bool = False, orientation: int = 1) -> bytes:
    """An uncompressed TIFF of (H, W) or (H, W, 3) values, little-endian, as one strip or one for each plane."""
    colors = values.reshape(*values.shape[:2], -1)
    height, width, count = colors.shape
    strips = [np.ascontiguousarray(colors[..., index]) for index in range(count)] if planes else [colors]
    starts = tuple(8 + sum(strip.nbytes for strip in strips[:index]) for index in range(len(strips)))
    sample_format = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    entries: dict[int, tuple[int, object]] = {
        256: (4, width), 257: (4, height), 258: (3, (8 * values.itemsize,) * count), 259: (3, 1),
        262: (3, 2 if count == 3 else 1), 273: (4, starts), 274: (3, orientation), 277: (3, count), 278: (4, height),
        279: (4, tuple(strip.nbytes for strip in strips)), 284: (3, 2 if planes else 1),
        339: (3, (sample_format,) * count),
    }  # fmt: skip
    body = b"".join(strip.tobytes() for strip in strips)
    return b"II*\0" + struct.pack("<I", 8 + len(body)) + body + directory(entries, 8 + len(body))
