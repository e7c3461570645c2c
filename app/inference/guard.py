"""Guard against images of untrusted senders that are built to exhaust memory or time.

`check_header` runs before an image is opened, `check_cost` before it is decoded. A pixel limit that admits large photos
also admits tiny files that unpack to the same size: a 6 kB PNG of 7000x7000 black pixels takes 525 MB to decode.
Therefore, large images need a minimum number of bytes per pixel, and the number of pixels that all threads decode at
the same time is limited. Parsers of metadata are bounded by `data.contract.pixels`.
"""

import re
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from mien.data.contract import DecodeError, ImageTooLarge
from mien.data.contract.pixels import Probe, formats, tiff_entries

# Decoding takes up to 20 bytes per pixel (WebP with alpha), so images up to this size take at most 100 MB.
SMALL_PX: Final = 5_000_000
# Photos have 0.05 bytes per pixel or more, even as WebP of low quality.
MIN_BYTES_PER_PX: Final = 0.02
# Progressive encoders write about 10 scans. Each one is a pass over all pixels: a billion pixels take about 0.7 s.
MAX_SCANS: Final = 100
MAX_SCAN_PIXELS: Final = 1_000_000_000
# Pillow unpacks all rational numbers of the tags that it needs, and EXIF that is spread over several segments.
MAX_RATIONALS: Final = 10_000
_RATIONALS: Final = (5, 10)  # types of a tag: RATIONAL and SRATIONAL
_MAX_EXIF_BYTES: Final = 1_000_000
_MAX_SEGMENTS: Final = 20_000  # Extended XMP takes hundreds.
_MAX_PADDING: Final = 65_536  # Photos have no bytes between their segments.

# Memory per pixel while an image is decoded, in units of the 10 bytes that JPEG, PNG, GIF, BMP and TIFF take at most:
# WebP takes 16 bytes, AVIF and HEIF 12 with transparency, as progressive JPEG in CMYK.
_MEMORY: Final = {"WEBP": 1.6, "AVIF": 1.2, "HEIF": 1.2}
_LARGEST: Final = 1.2  # limit on the memory of one image, relative to that of `max_pixels`

# Within scan data, 0xff is followed by 0x00 or a restart marker; repeated 0xff bytes are padding.
_MARKER: Final = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_START_OF_SCAN: Final = 0xDA
_END_OF_IMAGE: Final = 0xD9
_WITHOUT_LENGTH: Final = (0x01, 0xD8)
_SEQUENTIAL_FRAMES: Final = (0xC0, 0xC1)
_FRAMES: Final = tuple(marker for marker in range(0xC0, 0xD0) if marker not in (0xC4, 0xC8, 0xCC))
# Not accepted from senders: they take seconds for a few megabytes, as PPM of decimal numbers.
_FILES_ONLY: Final = ("PPM", "JPEG2000")
_TIFF: Final = (b"II\x2a\0", b"MM\0\x2a", b"II\x2b\0", b"MM\0\x2b")


def uploaded_formats() -> tuple[str, ...]:
    """The formats that are read from senders, as Pillow names them."""
    return tuple(name for name in formats() if name not in _FILES_ONLY)


def check_header(payload: bytes) -> int:
    """Reject a file that would cost a parser too much, before it is opened; returns the number of scans of a JPEG.

    Raises: DecodeError.
    """
    if payload.startswith(_TIFF):
        with suppress(struct.error, OverflowError):  # The decoder reports a file that ends early.
            if any(kind in _RATIONALS and count > MAX_RATIONALS for _, kind, count, _ in tiff_entries(payload)):
                raise DecodeError(
                    f"TIFF with a tag of more than {MAX_RATIONALS:,} values. Save it again without metadata."
                )
    return _jpeg_scans(payload) if payload.startswith(b"\xff\xd8") else 0


def check_cost(image: Probe, size_bytes: int, scans: int, *, max_pixels: int) -> None:
    """Reject an image that costs far more to decode than to send. Raises: ImageTooLarge, DecodeError.

    Args:
        scans: those of a JPEG.
    """
    pixels = image.width * image.height
    if memory_px(image) > _LARGEST * max_pixels:
        share = _MEMORY[image.format]
        raise ImageTooLarge(
            f"{image.format} image of {image.width}x{image.height} px: the limit is "
            f"{int(_LARGEST * max_pixels / share):,} pixels in this format"
        )
    if pixels > SMALL_PX and size_bytes < pixels * MIN_BYTES_PER_PX:
        raise ImageTooLarge(
            f"image of {image.width}x{image.height} px in {size_bytes:,} bytes: images of more than {SMALL_PX:,} "
            f"pixels need at least {MIN_BYTES_PER_PX} bytes per pixel"
        )
    if scans > MAX_SCANS or scans * pixels > MAX_SCAN_PIXELS:
        raise DecodeError(
            f"JPEG with {scans} scans at {image.width}x{image.height} px: the limits are {MAX_SCANS} scans and "
            f"{MAX_SCAN_PIXELS:,} pixels in all scans. Save it as a baseline JPEG"
        )


def memory_px(image: Probe) -> int:
    """Memory for decoding an image, in pixels of a format that takes least."""
    return int(image.width * image.height * _MEMORY.get(image.format, 1.0))


def _jpeg_scans(payload: bytes) -> int:
    """Number of scans up to the end of a JPEG; appended data (a preview, a video) is not counted."""
    scans, exif_bytes, position = 0, 0, 2
    sequential, components = False, b""
    for _ in range(_MAX_SEGMENTS):
        end = len(payload) if scans else min(len(payload), position + _MAX_PADDING)
        match = _MARKER.search(payload, position, end)
        if match is None and end < len(payload):
            break
        if match is None or payload[match.end() - 1] == _END_OF_IMAGE:
            return scans
        marker, position = payload[match.end() - 1], match.end()
        length = 0 if marker in _WITHOUT_LENGTH else int.from_bytes(payload[position : position + 2])
        if marker in _FRAMES:
            sequential, components = marker in _SEQUENTIAL_FRAMES, payload[position + 7 : position + 8]
        if marker == _START_OF_SCAN:
            scans += 1
            if sequential and payload[position + 2 : position + 3] == components:
                return scans  # Decoders stop after the only scan of a baseline JPEG.
        if payload.startswith(b"Exif", position + 2):
            exif_bytes += length
        if exif_bytes > _MAX_EXIF_BYTES:
            break
        position += length
    raise DecodeError("JPEG with more metadata than any photo needs. Save it again without metadata.")


class PixelBudget:
    """Limit on the decoded pixels that all threads hold at once. Blocks until there is room: for worker threads."""

    def __init__(self, pixels: int) -> None:
        self._free = self._total = pixels
        self._changed = threading.Condition()

    @contextmanager
    def reservation(self) -> Iterator[Callable[[int], None]]:
        """A function that reserves pixels until the end of the block, and waits for room.

        An image larger than the whole budget runs alone.
        """
        reserved = 0

        def reserve(pixels: int) -> None:
            nonlocal reserved
            needed = min(pixels, self._total - reserved)
            with self._changed:
                self._changed.wait_for(lambda: self._free >= needed)
                self._free -= needed
                reserved += needed

        try:
            yield reserve
        finally:
            with self._changed:
                self._free += reserved
                self._changed.notify_all()
