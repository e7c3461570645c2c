"""Decoding within a deployment's limits: the first stage of serving, bytes to (H, W, 3) uint8 RGB.

Uses the decoder of `data.contract`. The limits on bytes and pixels are checked before decoding.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import cv2

from mien.app.errors import PayloadTooLarge
from mien.app.inference import image_guard
from mien.app.settings import Settings
from mien.data import contract
from mien.data.contract import Array
from mien.data.contract.decode import Probe


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Pixels (H, W, 3) uint8 RGB, and the size of the photo: larger than `image` if it was decoded at reduced size."""

    image: Array
    width: int
    height: int

    @property
    def scale(self) -> float:
        """Pixels of the photo per pixel of `image`: 1, 2, 4 or 8, the scales JPEG decoders support."""
        return float(round(self.width / self.image.shape[1]))


def decode(
    payload: bytes, settings: Settings, *, reduced: bool = False, admit: Callable[[Probe], None] | None = None
) -> Decoded:
    """Decode one image, upright, within the deployment's limits.

    Args:
        payload: the file's bytes.
        settings: the limits.
        reduced: decode a JPEG at 1/2, 1/4 or 1/8 size if its long side stays at least `detection_max_px`. Decoding a
            12-megapixel photo takes ten times as long as detecting its faces; at half size, a third of that.
        admit: for an image of an untrusted sender: called with its format and size once the guard against
            decompression bombs has passed it; may wait for memory.
    Raises: PayloadTooLarge, ImageTooLarge, UnsupportedImage, DecodeError.
    """
    if len(payload) > settings.max_bytes:
        raise PayloadTooLarge(f"image of {len(payload):,} bytes: at most {settings.max_bytes:,} are accepted")
    if admit is None:
        size = contract.probe(payload, max_pixels=settings.max_pixels)
    else:
        size = image_guard.check(payload, max_pixels=settings.max_pixels)
        admit(size)
    reduce_to_px = settings.detection_max_px if reduced else None
    image = contract.decode(payload, max_pixels=settings.max_pixels, reduce_to_px=reduce_to_px)
    return Decoded(image, size.width, size.height)


def open_video(path: str | bytes) -> cv2.VideoCapture:
    """Open a video file; `isOpened` of the result says whether it could be read.

    OpenCV crashes at a name that is not UTF-8, and FFmpeg takes a relative `12:30.mp4` for the URL of a protocol.
    """
    file = Path(os.fsdecode(path)).absolute()
    with suppress(UnicodeDecodeError):
        return cv2.VideoCapture(bytes(file).decode())
    with suppress(OSError), file.open("rb") as opened:
        return cv2.VideoCapture(f"/dev/fd/{opened.fileno()}")
    return cv2.VideoCapture()
