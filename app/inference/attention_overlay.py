"""Attention map of a face crop, as numbers per patch and as an overlay on the crop.

The map is attention rollout (Abnar and Zuidema 2020), computed by the exported graph itself. It shows where information
could flow from, which is a hint at the reason and no proof of it.
"""

from typing import Final

import cv2
import numpy as np

from data.contract import Array

OVERLAY_PX: Final = 224
_SHARE: Final = 0.5
_FLAT: Final = 1e-6  # less than this between the least and the most is rounding


def overlay(crop: Array, relevance: Array) -> Array:
    """Lay the map over the crop: dark where the model looked away, warm where it looked.

    Returns: (224, 224, 3) uint8, RGB.
    """
    size = (OVERLAY_PX, OVERLAY_PX)
    photo = cv2.resize(crop, size, interpolation=cv2.INTER_CUBIC)
    grown = cv2.resize(relevance.astype(np.float32), size, interpolation=cv2.INTER_CUBIC)
    spread = float(np.ptp(grown))
    levels = np.clip((grown - grown.min()) / spread, 0, 1) if spread > _FLAT else np.zeros_like(grown)
    heat = cv2.applyColorMap((levels * 255).astype(np.uint8), cv2.COLORMAP_INFERNO)[:, :, ::-1]
    mixed: Array = cv2.addWeighted(photo, 1 - _SHARE, np.ascontiguousarray(heat), _SHARE, 0)
    return mixed
