"""Attention map of a face crop, as numbers per patch and as an overlay on the crop.

The map is attention rollout (Abnar and Zuidema 2020), computed by the exported graph itself. It shows where information
could come from; it does not prove why a label was predicted.
"""

from typing import Final

import cv2
import numpy as np

from mien.data.contract import Array

OVERLAY_PX: Final = 224
_ALPHA: Final = 0.5
_MIN_RANGE: Final = 1e-6  # a smaller range is rounding error


def overlay(crop: Array, relevance: Array) -> Array:
    """Blend the map with the crop: dark for low relevance, bright for high.

    Returns: (224, 224, 3) uint8, RGB.
    """
    size = (OVERLAY_PX, OVERLAY_PX)
    photo = cv2.resize(crop, size, interpolation=cv2.INTER_CUBIC)
    enlarged = cv2.resize(relevance.astype(np.float32), size, interpolation=cv2.INTER_CUBIC)
    spread = float(np.ptp(enlarged))
    levels = np.clip((enlarged - enlarged.min()) / spread, 0, 1) if spread > _MIN_RANGE else np.zeros_like(enlarged)
    heat = cv2.applyColorMap((levels * 255).astype(np.uint8), cv2.COLORMAP_INFERNO)[:, :, ::-1]
    blended: Array = cv2.addWeighted(photo, 1 - _ALPHA, np.ascontiguousarray(heat), _ALPHA, 0)
    return blended
