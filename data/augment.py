"""Augmentation of training crops with albumentations: uint8 in, uint8 out, reproducible by seed.

A recipe sets the strengths under `augment`.
"""

import os
from dataclasses import asdict, dataclass

# otherwise, albumentations contacts a server at import to look for a newer version
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import albumentations as A
import cv2

from mien.data.contract import Array


@dataclass(frozen=True, slots=True)
class AugmentConfig:
    """Strengths; a probability or range of 0 turns a step off."""

    flip: float = 0.5  # probability
    scale: float = 0.15  # +- share of the size
    shift: float = 0.08  # +- share of the side
    rotate_degrees: float = 15.0
    shear_degrees: float = 5.0
    brightness: float = 0.2
    contrast: float = 0.2
    gamma: float = 0.2
    blur: float = 0.1  # probability
    noise: float = 0.1  # probability
    compression: float = 0.1  # probability
    erase: float = 0.25  # probability
    color_jitter: float = 0.0  # hue and saturation; for RGB crops only

    def __post_init__(self) -> None:
        wrong = [name for name, value in asdict(self).items() if not 0 <= value <= (180 if "degrees" in name else 1)]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: expected 0 to 1, or to 180 degrees")


class Augment:
    """A pipeline of albumentations for (112, 112, C) uint8 crops."""

    def __init__(self, config: AugmentConfig) -> None:
        self._compose = A.Compose(_steps(config))

    def __call__(self, crop: Array, *, seed: int) -> Array:
        """Augment one (112, 112, C) uint8 crop; equal seeds give equal results."""
        self._compose.set_random_seed(seed % 2**32)
        augmented: Array = self._compose(image=crop)["image"]
        return augmented


def _steps(config: AugmentConfig) -> list[A.BasicTransform]:
    steps: list[A.BasicTransform] = [
        A.HorizontalFlip(p=config.flip),
        A.Affine(
            scale=(1 - config.scale, 1 + config.scale),
            translate_percent=(-config.shift, config.shift),
            rotate=(-config.rotate_degrees, config.rotate_degrees),
            shear=(-config.shear_degrees, config.shear_degrees),
            interpolation=cv2.INTER_LINEAR,
            border_mode=cv2.BORDER_REPLICATE,
            p=1.0,
        ),
        A.RandomBrightnessContrast(brightness_limit=config.brightness, contrast_limit=config.contrast, p=0.5),
        A.RandomGamma(
            gamma_limit=(max(1, 100 * (1 - config.gamma)), 100 * (1 + config.gamma)), p=0.3 if config.gamma else 0.0
        ),
        A.GaussianBlur(blur_limit=(3, 5), p=config.blur),
        A.GaussNoise(std_range=(0.01, 0.05), p=config.noise),
        A.ImageCompression(quality_range=(40, 90), p=config.compression),
        A.Erasing(scale=(0.02, 0.2), ratio=(0.4, 2.5), fill="random_uniform", p=config.erase),
    ]
    if config.color_jitter:
        steps.insert(2, A.HueSaturationValue(hue_shift_limit=10, sat_shift_limit=40, p=config.color_jitter))
    return [step for step in steps if step.p > 0]
