"""Is this picture built to hurt? Asked of uploads only, by the header and a scan of the bytes, before decoding.

The limit of pixels lets a large photo through, and with it a few kilobytes that unpack to the same size: 7000x7000
black pixels are a PNG of 6 kB that takes 525 MB to decode. So large pictures need bytes in proportion, a JPEG may not
be made of thousands of passes over the whole picture, and all threads together hold a bounded number of pixels.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from data.contract import DecodeError, ImageTooLarge, probe

# Decoding takes up to 20 bytes a pixel (WebP with alpha), so that up to here no picture takes more than 100 MB.
SMALL_PX: Final = 5_000_000
# Photos have 0.05 bytes a pixel or more, even as WebP of low quality.
LEAST_BYTES_PER_PX: Final = 0.02
# Encoders make about 10; a picture appended to another (a depth map, a preview) has its own.
MOST_SCANS: Final = 100
_JPEG: Final = b"\xff\xd8"
_START_OF_SCAN: Final = b"\xff\xda"  # inside a scan's data, 0xff is always followed by 0x00


def check(payload: bytes, *, max_pixels: int) -> int:
    """Refuse what looks harmless and is not; returns the picture's pixels.

    Raises: ImageTooLarge, DecodeError and its kinds.
    """
    found = probe(payload, max_pixels=max_pixels)
    pixels = found.width * found.height
    if pixels > SMALL_PX and len(payload) < pixels * LEAST_BYTES_PER_PX:
        raise ImageTooLarge(
            f"picture of {found.width}x{found.height} px in {len(payload):,} bytes: so little of so much is no photo, "
            f"expected at least {LEAST_BYTES_PER_PX} bytes a pixel above {SMALL_PX:,} pixels"
        )
    if payload.startswith(_JPEG) and (scans := payload.count(_START_OF_SCAN)) > MOST_SCANS:
        raise DecodeError(f"JPEG of {scans} scans: at most {MOST_SCANS} are decoded")
    return pixels


class PixelBudget:
    """Pixels that all threads together may hold decoded. Blocks until there is room; for worker threads only."""

    def __init__(self, pixels: int) -> None:
        self._left = self._all = pixels
        self._changed = threading.Condition()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait for room and take it; a picture larger than all of it is let in alone."""
        share = min(pixels, self._all)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= share)
            self._left -= share
        try:
            yield
        finally:
            with self._changed:
                self._left += share
                self._changed.notify_all()
