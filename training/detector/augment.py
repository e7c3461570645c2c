"""Photometric augmentation of samples; faces keep their place."""

import cv2
import numpy as np
from numpy.random import Generator

from mien.data.contract import Array


def augment(image: Array, rng: Generator) -> Array:
    """Apply random exposure, tint, grayscale, blur, noise and JPEG compression to (H, W, 3) uint8 BGR."""
    if rng.random() < 0.2:
        image = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    if rng.random() < 0.7:
        image = cv2.LUT(image, _curves(rng))
    if rng.random() < 0.15:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.4, 1.8))
    if rng.random() < 0.12:
        noise = rng.normal(0, rng.uniform(2, 16), image.shape)
        image = np.clip(image + noise, 0, 255).astype(np.uint8)
    if rng.random() < 0.15:
        packed = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(25, 90))])[1]
        image = np.asarray(cv2.imdecode(packed, cv2.IMREAD_COLOR))
    return image


def _curves(rng: Generator) -> Array:
    """Lookup table (1, 256, 3) uint8 of exposure, contrast and gamma, which differ slightly by channel."""
    levels = np.linspace(0, 1, 256, dtype=np.float32)[:, None]
    gamma = np.exp(rng.normal(0, 0.3)) * np.exp(rng.normal(0, 0.06, 3))
    gain = np.exp(rng.normal(-0.1, 0.3)) * np.exp(rng.normal(0, 0.06, 3))
    values = np.clip(levels**gamma * gain + rng.normal(0, 0.05), 0, 1)
    return (255 * values).astype(np.uint8)[None]  # type: ignore[no-any-return]
