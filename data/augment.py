"""Augmentation of training crops with albumentations and timm's RandAugment: uint8 in, uint8 out, reproducible by seed.

A recipe sets the strengths under `augment`.
"""

import os
import random
import re
from typing import Annotated, Any, Final

# otherwise, albumentations contacts a server at import to look for a newer version
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import albumentations as A
import cv2
import numpy as np
from PIL import Image
from pydantic import BaseModel, ConfigDict, Field, field_validator

from mien.data.contract import Array

Share = Annotated[float, Field(ge=0, le=1)]
Degrees = Annotated[float, Field(ge=0, le=180)]
_RAND_AUGMENT: Final = re.compile(r"rand(-((m|n|inc)\d+|(p|mstd)\d+(\.\d+)?))*")


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
    rand_augment: str = ""  # RandAugment before all steps, in timm's notation: rand-m9-mstd0.5-inc1 is DeiT's

    @field_validator("rand_augment")
    @classmethod
    def _is_timms_notation(cls, notation: str) -> str:
        if notation and not _RAND_AUGMENT.fullmatch(notation):
            raise ValueError(f"{notation!r}: expected timm's notation, e.g. rand-m9-mstd0.5-inc1")
        return notation


class Augment:
    """A pipeline for (112, 112, C) uint8 crops."""

    def __init__(self, config: AugmentConfig) -> None:
        self._compose = A.Compose(_steps(config))
        self._rand_augment: Any = None
        if config.rand_augment:
            from timm.data.auto_augment import posterize, rand_augment_transform

            self._rand_augment = rand_augment_transform(config.rand_augment, {"img_mean": (128, 128, 128)})
            for step in self._rand_augment.ops:
                if "Posterize" in step.name:  # timm keeps 0 bits at the ends of its range, which Pillow rejects
                    step.aug_fn = lambda image, bits, **_: posterize(image, max(1, bits))  # type: ignore[no-untyped-call]

    def __call__(self, crop: Array, *, seed: int) -> Array:
        """Augment one (112, 112, C) uint8 crop; equal seeds give equal results."""
        numpy_seed, python_seed, *rand_augment_seeds = (
            int(word) for word in np.random.SeedSequence(seed).generate_state(4)
        )
        if self._rand_augment is not None:
            crop = self._randomly_augmented(crop, *rand_augment_seeds)
        # not set_random_seed, which gives each step a generator with the same seed, so that all draw the same numbers
        self._compose.set_random_state(np.random.default_rng(numpy_seed), random.Random(python_seed))
        augmented: Array = self._compose(image=crop)["image"]
        return augmented

    def _randomly_augmented(self, crop: Array, python_seed: int, numpy_seed: int) -> Array:
        image = Image.fromarray(np.broadcast_to(crop, (*crop.shape[:2], 3)))
        states = random.getstate(), np.random.get_state()  # noqa: NPY002 (timm draws from both global generators)
        try:
            random.seed(python_seed)
            np.random.seed(numpy_seed)  # noqa: NPY002
            changed = np.asarray(self._rand_augment(image))
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
        return changed if crop.shape[2] == 3 else cv2.cvtColor(changed, cv2.COLOR_RGB2GRAY)[..., None]


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
