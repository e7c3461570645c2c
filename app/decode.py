"""May these bytes be decoded, and into which pixels? First stage of serving: bytes -> (H, W, 3) uint8 RGB.

The decoder is the contract's; a deployment's limits come on top, and are checked before a pixel is decoded.
"""

from dataclasses import dataclass

from app.errors import PayloadTooLarge
from app.settings import Settings
from data import contract
from data.contract import Array


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """Pixels (H, W, 3) uint8 RGB, and the photo's own size: larger than the pixels' where it was decoded reduced."""

    image: Array
    width: int
    height: int

    @property
    def scale(self) -> float:
        """Pixels of the photo for one of `image`: 1, 2, 4 or 8, as JPEG can be decoded."""
        return float(round(self.width / self.image.shape[1]))


def decode(payload: bytes, settings: Settings) -> Array:
    """Decode one picture, upright, within the deployment's limits.

    Returns: (H, W, 3) uint8, RGB.
    Raises: PayloadTooLarge, ImageTooLarge, UnsupportedImage, DecodeError.
    """
    _check_bytes(payload, settings)
    return contract.decode(payload, max_pixels=settings.max_pixels)


def decode_reduced(payload: bytes, settings: Settings) -> Decoded:
    """As `decode`, but a JPEG may come at 1/2, 1/4 or 1/8, as long as detection sees no difference.

    Decoding a photo of 12 megapixels takes ten times as long as finding its faces; half the side takes a third of that.
    """
    _check_bytes(payload, settings)
    size = contract.probe(payload, max_pixels=settings.max_pixels)
    image = contract.decode(payload, max_pixels=settings.max_pixels, reduce_to_px=settings.detection_max_px)
    return Decoded(image, size.width, size.height)


def _check_bytes(payload: bytes, settings: Settings) -> None:
    if len(payload) > settings.max_bytes:
        raise PayloadTooLarge(f"picture of {len(payload):,} bytes: at most {settings.max_bytes:,} are accepted")
