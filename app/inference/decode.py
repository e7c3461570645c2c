"""Decoding within a deployment's limits: the first stage of serving, bytes to (H, W, 3) uint8 RGB.

Uses the decoder of `data.contract`. The limits on bytes and pixels are checked before decoding.
"""

from collections.abc import Callable
from dataclasses import dataclass

from mien.app.errors import PayloadTooLarge
from mien.app.inference import image_guard
from mien.app.inference.detect.search import is_tiled
from mien.app.settings import InferenceSettings
from mien.data import contract
from mien.data.contract import Array
from mien.data.contract.decode import Probe
from mien.data.contract.levels import decode_stretched


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Pixels (H, W, 3) uint8 RGB, and the size of the photo: larger than `image` if it was decoded at reduced size.

    notes: codes of `NOTES`.
    """

    image: Array
    width: int
    height: int
    notes: tuple[str, ...] = ()

    @property
    def scale(self) -> float:
        """Pixels of the photo per pixel of `image`: 1, 2, 4 or 8, the scales JPEG decoders support."""
        return float(round(self.width / self.image.shape[1]))


def decode_image(
    payload: bytes, settings: InferenceSettings, *, reduced: bool = False, admit: Callable[[Probe], None] | None = None
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
    reduced = reduced and not is_tiled(size.width, size.height, settings)
    reduce_to_px = settings.detection_max_px if reduced else None
    # OpenCV's decoders get no bytes of untrusted senders
    image, is_stretched = decode_stretched(
        payload, max_pixels=settings.max_pixels, reduce_to_px=reduce_to_px, colors=admit is None
    )
    return Decoded(image, size.width, size.height, ("stretched",) if is_stretched else ())
