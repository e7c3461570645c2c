"""TIFF that neither Pillow nor OpenCV writes, and a minimal DNG: what LibRaw needs of a camera's raw file."""

import struct

import numpy as np

from mien.data.contract import Array

_FORMATS = {1: "B", 3: "H", 4: "I", 5: "II", 10: "ii"}
# XYZ to linear sRGB, so that the camera's colors are those of the photo
_MATRIX = (3.2406, -1.5372, -0.4986, -0.9689, 1.8758, 0.0415, 0.0557, -0.2040, 1.0570)


def directory(entries: dict[int, tuple[int, object]], offset: int) -> bytes:
    """An image file directory at an offset of the file, with its values behind it."""
    head, tail = struct.pack("<H", len(entries)), b""
    values_at = offset + 2 + 12 * len(entries) + 4
    for tag, (kind, given) in sorted(entries.items()):
        if isinstance(given, bytes):
            value, count = given, len(given)
        else:
            numbers = given if isinstance(given, tuple) else (given,)
            count = len(numbers) // len(_FORMATS[kind])
            value = struct.pack("<" + _FORMATS[kind] * count, *numbers)
        if len(value) > 4:
            head += struct.pack("<HHII", tag, kind, count, values_at + len(tail))
            tail += value + b"\0" * (len(value) % 2)
        else:
            head += struct.pack("<HHI", tag, kind, count) + value.ljust(4, b"\0")
    return head + struct.pack("<I", 0) + tail


def dng(photo: Array, *, orientation: int = 1, preview: bytes = b"", preview_px: tuple[int, int] = (0, 0)) -> bytes:
    """A DNG with the Bayer mosaic of a photo, (H, W, 3) uint8 RGB, and a JPEG preview of width and height."""
    height, width = photo.shape[:2]
    linear = np.round((photo / 255.0) ** 2.2 * 65535).astype("<u2")
    mosaic = linear[..., 1].copy()
    mosaic[::2, ::2], mosaic[1::2, 1::2] = linear[::2, ::2, 0], linear[1::2, 1::2, 2]
    raw = mosaic.tobytes()
    raw_at = 8
    preview_at = raw_at + len(raw)
    sub_at = preview_at + len(preview) + len(preview) % 2
    sub = b""
    if preview:
        sub = directory(
            {
                254: (4, 1), 256: (4, preview_px[0]), 257: (4, preview_px[1]), 258: (3, (8, 8, 8)), 259: (3, 7),
                262: (3, 6), 273: (4, preview_at), 277: (3, 3), 278: (4, preview_px[1]), 279: (4, len(preview)),
            },
            sub_at,
        )  # fmt: skip
    main_at = sub_at + len(sub)
    entries: dict[int, tuple[int, object]] = {
        254: (4, 0), 256: (4, width), 257: (4, height), 258: (3, 16), 259: (3, 1), 262: (3, 32803), 271: (2, b"Test\0"),
        272: (2, b"Camera\0"), 273: (4, raw_at), 274: (3, orientation), 277: (3, 1), 278: (4, height),
        279: (4, len(raw)), 33421: (3, (2, 2)), 33422: (1, (0, 1, 1, 2)), 50706: (1, (1, 4, 0, 0)),
        50708: (2, b"Test Camera\0"), 50721: (10, tuple(n for v in _MATRIX for n in (round(v * 10_000), 10_000))),
        50728: (5, (1, 1, 1, 1, 1, 1)), 50778: (3, 21),
    }  # fmt: skip
    if preview:
        entries[330] = (4, sub_at)
    body = raw + preview + b"\0" * (len(preview) % 2) + sub + directory(entries, main_at)
    return b"II*\0" + struct.pack("<I", main_at) + body


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
