"""May these bytes be decoded, and into which pixels? First stage of serving: bytes -> (H, W, 3) uint8 RGB.

The decoder is the contract's; a deployment's limits come on top, and are checked before a pixel is decoded.
"""

from app.errors import PayloadTooLarge
from app.settings import Settings
from data import contract
from data.contract import Array


def decode(payload: bytes, settings: Settings) -> Array:
    """Decode one picture, upright, within the deployment's limits.

    Returns: (H, W, 3) uint8, RGB.
    Raises: PayloadTooLarge, ImageTooLarge, UnsupportedImage, DecodeError.
    """
    if len(payload) > settings.max_bytes:
        raise PayloadTooLarge(f"picture of {len(payload):,} bytes: at most {settings.max_bytes:,} are accepted")
    return contract.decode(payload, max_pixels=settings.max_pixels)
