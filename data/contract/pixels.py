"""Pixels of a face: image files decoded to upright RGB, and cut to crops of 112x112 pixels, brow to chin.

Only formats on an allow-list are decoded, and limits are checked on the header, before pixels are.
`align` warps a face found in a photo; `fit` resizes an image that already is a face crop. The template consists of the
five landmarks that OpenCV's YuNet finds on FERPlus faces (median of each point, made symmetric), so that both kinds of
crops frame the face alike: docs/decisions/0002-crop-template.md.
"""

import importlib.util
import io
import re
import struct
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from mien.data.errors import MienError

Array = npt.NDArray[Any]

CROP_PX: Final = 112
# Names of the five landmarks, in order; left and right as seen in the image.
LANDMARKS: Final = ("left_eye", "right_eye", "nose", "left_mouth", "right_mouth")
# x then y, in pixels of the crop
TEMPLATE_PX: Final = ((35.0, 42.3), (77.0, 42.3), (56.0, 65.5), (39.1, 84.6), (72.9, 84.6))
MIN_SPREAD_PX: Final = 1.0
_CENTER: Final = sum(complex(*point) for point in TEMPLATE_PX) / len(TEMPLATE_PX)
_CENTERED: Final = [complex(*point) - _CENTER for point in TEMPLATE_PX]

FORMATS: Final = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "AVIF", "PPM", "JPEG2000")
MAX_PIXELS: Final = 50_000_000
_STRIP_PIXELS: Final = 2**17  # They fit in the cache with their copies: a sixth of the time of 4 megapixels.
# Reads by a parser, besides one per kilobyte: a PNG of 20 MB has 2,500 chunks of 8 kB.
_MAX_PARTS: Final = 100_000
_MAX_PROFILE_BYTES: Final = 4_000_000
_ORIENTATION: Final = 0x0112
_BITS, _PLANES = 258, 284  # tags of TIFF
_XMP_ORIENTATION: Final = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')
_HEIC: Final = re.compile(rb"(?s).{4}ftyp(hei[cxms]|hev[cxms]|mif1|msf1)")
_INTEGERS: Final = {1: "B", 3: "H", 4: "I"}  # types of EXIF values
_MIRRORED: Final = (2, 4, 5, 7)  # orientations whose image is mirrored before it is turned
_TURNS: Final = {
    3: cv2.ROTATE_180,
    4: cv2.ROTATE_180,
    5: cv2.ROTATE_90_COUNTERCLOCKWISE,
    6: cv2.ROTATE_90_CLOCKWISE,
    7: cv2.ROTATE_90_CLOCKWISE,
    8: cv2.ROTATE_90_COUNTERCLOCKWISE,
}
_PILLOW: Final = re.compile(r"PIL\.")
# Exceptions that Pillow's parsers raise on malformed bytes, found by mutating files of each format.
BROKEN: Final = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    EOFError,
    RuntimeError,
    struct.error,
)
_MAX_MISSING: Final = 0.5  # part of a JPEG whose end is missing


class DegenerateLandmarks(MienError, ValueError):
    """Five points that do not determine a similarity transform: not finite, or all at the same place."""


class DecodeError(MienError, ValueError):
    """The image is truncated or corrupt."""

    status, code = 422, "corrupt"


class EmptyImage(DecodeError):
    """A file without bytes."""

    code = "empty"


class UnsupportedImage(DecodeError):
    """The image is not in a supported format."""

    status, code = 415, "unsupported"


class ImageTooLarge(DecodeError):
    """The image has more bytes or, according to its header, more pixels than the limit."""

    status, code = 413, "too_large"


@dataclass(frozen=True, slots=True)
class Probe:
    """Format and size from the header; width and height in pixels, after EXIF rotation."""

    format: str
    width: int
    height: int


def _ignore_pillow_warnings() -> None:
    """Ignore Pillow's warnings about damaged metadata, but not those about decompression bombs.

    `warnings.catch_warnings` is not thread-safe: it changes the filters of the whole process.
    """
    if not any(entry[0] == "ignore" and entry[3] == _PILLOW for entry in warnings.filters):
        warnings.filterwarnings("ignore", category=UserWarning, module=_PILLOW.pattern)


@cache
def formats() -> tuple[str, ...]:
    """Formats that are recognized by content: those of Pillow, and HEIC if pillow-heif is installed."""
    if importlib.util.find_spec("pillow_heif") is None:
        return FORMATS
    import pillow_heif

    pillow_heif.register_heif_opener()
    return (*FORMATS, "HEIF")


class _Reader(io.BytesIO):
    """The bytes of a file, for a limited number of reads and bytes.

    Pillow reads fill bytes one by one, chunks, blocks and tags one after the other, and a tag's value from anywhere: a
    small file could cost seconds and gigabytes.
    """

    def __init__(self, payload: bytes) -> None:
        super().__init__(payload)
        self._reads = _MAX_PARTS + len(payload) // 1000
        self._bytes = 4 * len(payload) + 1_000_000

    def read(self, size: int | None = -1, /) -> bytes:
        part = super().read(size)
        self._reads -= 1
        self._bytes -= len(part)
        if self._reads < 0 or self._bytes < 0:
            raise DecodeError("too many parts, which no photo needs. Save it again without metadata")
        return part


def tiff_entries(header: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Tag, type, number of values, and the value or its position, of the first directory of a TIFF or EXIF header.

    Raises: struct.error or OverflowError, if it ends early.
    """
    order = "<" if header.startswith(b"II") else ">"
    is_big = header[2:4] in (b"\x2b\0", b"\0\x2b")
    (start,) = struct.unpack_from(order + ("Q" if is_big else "I"), header, 8 if is_big else 4)
    (count,) = struct.unpack_from(order + ("Q" if is_big else "H"), header, start)
    entry = struct.Struct(order + ("HHQ8s" if is_big else "HHI4s"))
    for index in range(min(count, _MAX_PARTS)):
        yield entry.unpack_from(header, start + (8 if is_big else 2) + index * entry.size)


def open_image(payload: bytes, max_pixels: int, accepted: tuple[str, ...] | None = None) -> Image.Image:
    """Open an image of an accepted format, by default any; its pixels are not decoded. Raises: see `decode`."""
    _ignore_pillow_warnings()
    if not payload:
        raise EmptyImage("empty file: no bytes to decode")
    if max_pixels > MAX_PIXELS and Image.MAX_IMAGE_PIXELS is not None:
        Image.MAX_IMAGE_PIXELS = max(max_pixels, Image.MAX_IMAGE_PIXELS)
    try:
        return Image.open(_Reader(payload), formats=accepted or formats())
    except UnidentifiedImageError:
        if "HEIF" not in formats() and _HEIC.match(payload):
            raise UnsupportedImage(
                "HEIC needs the package pillow-heif (`pip install pillow-heif`). Without it, save the photo as JPEG"
            ) from None
        raise UnsupportedImage(f"not an image in a supported format ({', '.join(accepted or formats())})") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:  # A warning may be an error.
        raise ImageTooLarge(
            f"image of more than {max_pixels / 1e6:g} megapixels, the limit: save it smaller"
        ) from error
    except BROKEN as error:
        raise DecodeError(f"unreadable image header: {error}") from error


def _check_pixels(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width < 1 or height < 1:
        raise DecodeError(f"image of {width}x{height} px has no pixels")
    if width * height > max_pixels:
        raise ImageTooLarge(f"image of {width}x{height} px: the limit is {max_pixels:,} pixels")


def _check_planes(image: Image.Image) -> None:
    """Reject a TIFF with separate planes of 16 bits, whose bytes Pillow takes for those of 8."""
    tags = getattr(image, "tag_v2", {})
    if image.format == "TIFF" and tags.get(_PLANES) == 2 and len(bits := tags.get(_BITS, ())) > 1 and max(bits) > 8:
        raise UnsupportedImage("TIFF with a plane of 16 bits for each color: save it with interleaved colors or as PNG")


def _orientation_of(image: Image.Image) -> int:
    """Find the EXIF orientation to apply. Pillow rotates TIFF itself, and swaps its width and height on opening.

    Read here, because Pillow unpacks all values of a tag: two million of a few megabytes.
    """
    if image.format == "TIFF":
        return 1
    if image.format == "PNG" and "exif" not in image.info:
        image.load()  # It may follow the pixels.
    info = image.info
    try:
        exif = info.get("exif") or bytes.fromhex("".join(info.get("Raw profile type exif", "").split("\n")[3:]))
        header = exif.removeprefix(b"Exif\0\0")
        for tag, kind, count, value in tiff_entries(header) if header else ():
            if tag == _ORIENTATION and count == 1 and kind in _INTEGERS:
                order = "<" if header.startswith(b"II") else ">"
                return int(struct.unpack_from(order + _INTEGERS[kind], value)[0])
        xmp = info.get("XML:com.adobe.xmp") or info.get("xmp") or b""
        found = _XMP_ORIENTATION.search(xmp.encode() if isinstance(xmp, str) else xmp)
        return int(found[1]) if found else 1
    except BROKEN:
        return 1  # The orientation is unknown if EXIF is damaged, but the pixels are usable.


def probe(image: Image.Image, payload: bytes, *, max_pixels: int) -> Probe:
    """Format and upright size of an open image. Raises: see `decode`."""
    _check_pixels(image, max_pixels)
    width, height = image.size
    turned = _may_be_turned(image, payload) and _orientation_of(image) in (5, 6, 7, 8)
    return Probe(_format(image), *((height, width) if turned else (width, height)))


def _may_be_turned(image: Image.Image, payload: bytes) -> bool:
    """Find out if an orientation may follow: to look for one after the pixels of a PNG, Pillow would decode them."""
    return image.format != "PNG" or any(mark in payload for mark in (b"eXIf", b"tiff:Orientation", b"Raw profile"))


def _format(image: Image.Image) -> str:
    # Phones append a preview or a depth map to a JPEG, which Pillow calls MPO.
    return "JPEG" if image.format == "MPO" else str(image.format)


def decode(
    payload: bytes, *, max_pixels: int = MAX_PIXELS, reduce_to_px: int | None = None, incomplete: bool = False
) -> Array:
    """Decode the first frame of an image, upright, in RGB.

    EXIF orientation is applied for every format. Grayscale and CMYK are converted to RGB, transparent images are
    composited onto white, and 16-bit integers and floats are scaled by their maximum, 65535 and 1, to 8 bits.

    Args:
        payload: the file's bytes: JPEG, PNG, WebP, BMP, GIF, TIFF, AVIF, JPEG 2000, PPM, PGM, or HEIC if pillow-heif
            is installed.
        max_pixels: limit on width times height, checked on the header.
        reduce_to_px: a JPEG may be decoded at 1/2, 1/4 or 1/8 size if its long side keeps at least this many pixels.
        incomplete: accept a JPEG whose end is missing; see `decode_incomplete`.
    Returns: (H, W, 3) uint8, RGB, C-contiguous and read-only: copy it to draw on it.
    Raises: UnsupportedImage, ImageTooLarge, DecodeError.
    """
    with open_image(payload, max_pixels) as image:
        if incomplete:
            return decode_incomplete(image, payload, max_pixels=max_pixels, reduce_to_px=reduce_to_px)[0]
        return upright_rgb(image, max_pixels=max_pixels, reduce_to_px=reduce_to_px, keep=False)


def decode_incomplete(
    image: Image.Image, payload: bytes, *, max_pixels: int, reduce_to_px: int | None
) -> tuple[Array, bool]:
    """Decode an open image, and what is there of a JPEG whose end is missing; the second value says that it is.

    The missing part has one color, as in viewers. Raises: DecodeError, if it is more than a half; see `decode`.
    """
    try:
        return upright_rgb(image, max_pixels=max_pixels, reduce_to_px=reduce_to_px, keep=False), False
    except ImageTooLarge:
        raise
    except DecodeError:
        ended = payload + b"\xff\xd9"
        if not payload.startswith(b"\xff\xd8") or _missing_share(ended, max_pixels) > _MAX_MISSING:
            raise
        return decode(ended, max_pixels=max_pixels, reduce_to_px=reduce_to_px), True


def _missing_share(jpeg: bytes, max_pixels: int) -> float:
    """Part of the rows of an ended JPEG that its decoder filled with one color, from an eighth of its size."""
    try:
        with open_image(jpeg, max_pixels) as image:
            image.draft(None, (max(1, image.width // 8), max(1, image.height // 8)))
            rows = np.asarray(image.convert("RGB"))
    except (DecodeError, *BROKEN):
        return 1.0
    is_filled = (rows == rows[-1, -1]).all(axis=(1, 2))
    return float(np.argmin([*is_filled[::-1], False]) / len(rows))


def icc_profile(payload: bytes) -> bytes:
    """The color profile that belongs to the pixels of `decode`; empty if they have none, or it is not one of RGB."""
    if payload.startswith(b"\xff\xd8") and b"ICC_PROFILE\0" not in payload:  # Opening a JPEG takes longer.
        return b""
    try:
        with open_image(payload, Image.MAX_IMAGE_PIXELS or MAX_PIXELS) as image:
            profile = image.info.get("icc_profile") or b""
    except DecodeError:
        return b""
    return profile if profile[16:20] == b"RGB " and len(profile) <= _MAX_PROFILE_BYTES else b""


def upright_rgb(
    image: Image.Image,
    *,
    max_pixels: int = MAX_PIXELS,
    reduce_to_px: int | None = None,
    keep: bool = True,
) -> Array:
    """Pixels of an open image of Pillow, which is closed early to free memory unless it is to be kept; see `decode`."""
    _check_pixels(image, max_pixels)
    _check_planes(image)
    try:
        if reduce_to_px is not None:
            share = max(1, max(image.size) // max(1, reduce_to_px))
            image.draft(image.mode, (max(1, image.width // share), max(1, image.height // share)))
        image.load()
        orientation = _orientation_of(image)
        pixels: Array = np.empty((image.height, image.width, 3), np.uint8)
        # Copies of a large image would take twice the memory of decoding it: it is copied in strips, and closed early.
        rows = max(1, _STRIP_PIXELS // image.width)
        for top in range(0, image.height, rows):
            bottom = min(top + rows, image.height)
            pixels[top:bottom] = np.asarray(_to_rgb(image.crop((0, top, image.width, bottom))))
    except MemoryError as error:
        raise ImageTooLarge(f"image of {image.size[0]}x{image.size[1]} px: out of memory") from error
    except BROKEN as error:
        raise DecodeError(f"corrupt or truncated {_format(image)} image: {error}") from error
    if not keep:
        image.close()
    if orientation in _MIRRORED:
        pixels = cv2.flip(pixels, 1)
    if orientation in _TURNS:
        pixels = cv2.rotate(pixels, _TURNS[orientation])
    pixels.flags.writeable = False
    return pixels


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_to_8_bit(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        rgba = (image.convert("LA") if image.mode == "La" else image).convert("RGBA")  # Pillow has no direct way.
        white = Image.new("RGBA", rgba.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")  # Converting it would copy it.


def _to_8_bit(values: Array) -> Array:
    """Scale 16-bit integers by the range of their type, and floats from 0 to 1, to (...) uint8."""
    scaled: Array
    if values.dtype.kind == "f":  # TIFF usually has 0 to 1.
        scaled = np.rint(np.clip(np.nan_to_num(values), 0, 1) * 255)
    else:  # 65535 / 255 is 257; adding half of it rounds.
        scaled = (np.clip(values, 0, 65535).astype(np.uint32) + 128) // 257
    return scaled.astype(np.uint8)


def similarity(landmarks_px: Array) -> Array:
    """Least-squares similarity from five landmarks to the template, (2, 3) float64. Source: Umeyama 1991."""
    points = np.asarray(landmarks_px, dtype=np.float64)
    if points.shape != (5, 2) or not np.isfinite(points).all():
        raise DegenerateLandmarks(f"landmarks of shape {points.shape}: expected five finite (x, y) points")
    # A similarity without reflection multiplies by a complex number, and adds another. Plain Python takes a third of
    # NumPy's time, and each face needs three.
    source = [complex(x, y) for x, y in points.tolist()]
    center = sum(source) / len(source)
    centered = [point - center for point in source]
    spread = sum(point.real * point.real + point.imag * point.imag for point in centered)
    if spread < MIN_SPREAD_PX:
        raise DegenerateLandmarks(f"landmarks within {spread**0.5:.2f} px of each other: too close to align a face")
    factor = sum(point.conjugate() * wanted for point, wanted in zip(centered, _CENTERED, strict=True)) / spread
    if factor.real * factor.real + factor.imag * factor.imag < 1e-12:
        raise DegenerateLandmarks("landmarks are mirrored or in the wrong order: their best similarity has scale 0")
    shift = _CENTER - factor * center
    return np.array([[factor.real, -factor.imag, shift.real], [factor.imag, factor.real, shift.imag]])


def align(image: Array, landmarks_px: Array) -> Array:
    """Warp one face onto the 112-pixel template.

    Faces larger than the template are first reduced by area averaging, because bilinear sampling alone would alias.
    Outside of the image, its edge is repeated.

    Args:
        image: (H, W, 3) uint8, RGB.
        landmarks_px: (5, 2) float, x then y: image-left eye, image-right eye, nose, image-left mouth corner,
            image-right mouth corner.
    Returns: (112, 112, 3) uint8, RGB.
    Raises: DegenerateLandmarks, if the points do not determine a similarity.
    Source: Umeyama 1991.
    """
    matrix = similarity(landmarks_px)
    region, offset_xy = _region(image, matrix)
    shrink = max(1, int(1.0 / float(np.hypot(matrix[0, 0], matrix[1, 0]))))
    shrink = min(shrink, *region.shape[:2])
    if shrink > 1:
        height, width = region.shape[0] // shrink, region.shape[1] // shrink
        region = cv2.resize(
            np.ascontiguousarray(region[: height * shrink, : width * shrink]),
            (width, height),
            interpolation=cv2.INTER_AREA,
        )
    # A reduced pixel i covers source pixels shrink*i .. shrink*i+shrink-1, so its center is shrink*i + (shrink-1)/2.
    start = np.asarray(offset_xy, dtype=np.float64) + (shrink - 1) / 2
    warp = np.hstack([matrix[:, :2] * shrink, (matrix[:, :2] @ start + matrix[:, 2])[:, None]])
    return cv2.warpAffine(region, warp, (CROP_PX, CROP_PX), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


def _region(image: Array, matrix: Array) -> tuple[Array, tuple[int, int]]:
    """Cut out the part of `image` that the crop covers, with a margin; returns it and its top-left corner (x, y)."""
    inverse = cv2.invertAffineTransform(matrix)
    corners = np.array([[0, 0, 1], [CROP_PX, 0, 1], [0, CROP_PX, 1], [CROP_PX, CROP_PX, 1]], dtype=np.float64)
    seen = corners @ inverse.T
    margin = 2.0 + 2.0 / float(np.hypot(matrix[0, 0], matrix[1, 0]))
    height, width = image.shape[:2]
    left, top = np.clip(np.floor(seen.min(axis=0) - margin), 0, [width - 1, height - 1]).astype(int)
    right, bottom = np.clip(np.ceil(seen.max(axis=0) + margin), [left + 1, top + 1], [width, height]).astype(int)
    return image[top:bottom, left:right], (int(left), int(top))


def fit(image: Array) -> Array:
    """Resize an image that already is a face crop (48x48, 100x100, ...) to the template's size.

    An image that is not square keeps its aspect ratio: its short side is padded by repeating the edge.

    Args:
        image: (H, W, 3) uint8, RGB, brow to chin with a margin.
    Returns: (112, 112, 3) uint8, RGB.
    """
    long_side = max(image.shape[:2])
    height, width = (max(1, round(side * CROP_PX / long_side)) for side in image.shape[:2])
    interpolation = cv2.INTER_AREA if long_side > CROP_PX else cv2.INTER_LINEAR
    face = cv2.resize(np.ascontiguousarray(image), (width, height), interpolation=interpolation)
    top, left = (CROP_PX - height) // 2, (CROP_PX - width) // 2
    return cv2.copyMakeBorder(face, top, CROP_PX - height - top, left, CROP_PX - width - left, cv2.BORDER_REPLICATE)


def roll_degrees(landmarks_px: Array) -> float:
    """In-plane rotation of a face: angle of the line between the eyes, degrees, clockwise positive, 0 when upright."""
    (left_x, left_y), (right_x, right_y) = np.asarray(landmarks_px, dtype=np.float64)[:2]
    return float(np.degrees(np.arctan2(right_y - left_y, right_x - left_x)))
