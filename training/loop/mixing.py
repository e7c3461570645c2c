"""Mixup and CutMix of a batch with its reverse, for crops and targets.

Sources: Zhang et al. 2018 and Yun et al. 2019. Like the batch mode of timm.data.Mixup, but for uint8 crops and vote
shares. Random numbers depend only on (seed, step), so resumed runs and all processes mix in the same way.
"""

import math

import numpy as np
from torch import Tensor

from mien.training.config import MixConfig

_STREAM = 0x6D6978  # differs from the seeds of order and augmentation


def mix(crops: Tensor, targets: Tensor, config: MixConfig, *, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Mix a batch; the input tensors are not modified.

    Args:
        crops: (B, H, W, C) uint8.
        targets: (B, 7) class shares.
    Returns: mixed crops and targets; face i is combined with face B - 1 - i.
    """
    rng = np.random.default_rng([_STREAM, seed, step])
    if not (config.mixup or config.cutmix) or rng.random() >= config.probability:
        return crops, targets
    use_cutmix = bool(config.cutmix) and (not config.mixup or rng.random() < 0.5)
    alpha = config.cutmix if use_cutmix else config.mixup
    lam = float(rng.beta(alpha, alpha))
    if use_cutmix:
        crops, lam = _cutmix(crops, lam, rng)
    else:
        crops = (crops.float() * lam + crops.flip(0).float() * (1 - lam)).round().to(crops.dtype)
    return crops, targets * lam + targets.flip(0) * (1 - lam)


def _cutmix(crops: Tensor, lam: float, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Paste a box from the reversed batch; returns the share of pixels that remain, as the box is clipped."""
    height, width = crops.shape[1:3]
    half_y, half_x = (int(side * math.sqrt(1 - lam)) // 2 for side in (height, width))
    y, x = int(rng.integers(height)), int(rng.integers(width))
    top, bottom = max(0, y - half_y), min(height, y + half_y)
    left, right = max(0, x - half_x), min(width, x + half_x)
    mixed = crops.clone()
    mixed[:, top:bottom, left:right] = crops.flip(0)[:, top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
