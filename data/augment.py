"""Augmentation of training crops with albumentations and torchvision's RandAugment: uint8 in, uint8 out, by seed.

A recipe sets the strengths under `augment`.
"""

import os
import random
from typing import Annotated

# otherwise, albumentations contacts a server at import to look for a newer version
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import albumentations as A
import cv2
import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torchvision.transforms import v2

from mien.data.contract import Array

Share = Annotated[float, Field(ge=0, le=1)]
Degrees = Annotated[float, Field(ge=0, le=180)]


class AugmentConfig(BaseModel):
    """Strengths; a probability or range of 0 turns a step off."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    flip: Share = 0.5  # probability
    scale: Share = 0.15  # +- share of the size, of both sides alike: their ratio carries the label
    shift: Share = 0.08  # +- share of the side
    rotate_degrees: Degrees = 15.0
    shear_degrees: Degrees = 5.0
    brightness: Share = 0.2
    contrast: Share = 0.2
    gamma: Share = 0.2
    blur: Share = 0.1  # probability
    noise: Share = 0.1  # probability
    compression: Share = 0.1  # probability
    erase: Share = 0.25  # probability
    color_jitter: Share = 0.0  # hue, saturation and brightness; for RGB crops only
    rand_augment: Annotated[int, Field(ge=0, le=30)] = 0  # magnitude of RandAugment's two operations before all steps


class Augment:
    """A pipeline for (112, 112, C) uint8 crops."""

    def __init__(self, config: AugmentConfig) -> None:
        self._compose = A.Compose(_steps(config))
        self._rand_augment = v2.RandAugment(magnitude=config.rand_augment) if config.rand_augment else None

    def __call__(self, crop: Array, *, seed: int) -> Array:
        """Augment one (112, 112, C) uint8 crop; equal seeds give equal results."""
        numpy_seed, python_seed, torch_seed = (int(word) for word in np.random.SeedSequence(seed).generate_state(3))
        if self._rand_augment is not None:
            pixels = torch.from_numpy(np.repeat(crop, 3 // crop.shape[2], axis=2)).permute(2, 0, 1)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(torch_seed)
                changed: Array = self._rand_augment(pixels).permute(1, 2, 0).contiguous().numpy()
            crop = changed if crop.shape[2] == 3 else cv2.cvtColor(changed, cv2.COLOR_RGB2GRAY)[..., None]
        # not set_random_seed, which gives each step a generator with the same seed, so that all draw the same numbers
        self._compose.set_random_state(np.random.default_rng(numpy_seed), random.Random(python_seed))
        augmented: Array = self._compose(image=crop)["image"]
        return augmented


def _steps(config: AugmentConfig) -> list[A.BasicTransform]:
    steps: list[A.BasicTransform] = [
        A.HorizontalFlip(p=config.flip),
        A.Affine(
            scale=(1 - config.scale, 1 + config.scale),
            keep_ratio=True,
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
