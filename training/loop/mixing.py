"""Mixup and cutmix: a batch with itself in reverse, pictures and targets alike.

Zhang et al. 2018 and Yun et al. 2019, as timm.data.Mixup does in its batch mode, but on uint8 crops and vote shares,
and drawn from (seed, step) alone: a resumed run mixes as an uninterrupted one, and all processes of a step mix alike.
"""

import math

import numpy as np
from torch import Tensor

from training.config import MixConfig

_STREAM = 0x6D6978  # apart from the seeds of order and augmentation


def mix(crops: Tensor, targets: Tensor, config: MixConfig, *, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Mix a batch as `config` says; the given tensors are left as they are.

    Args:
        crops: (B, H, W, C) uint8.
        targets: (B, 7) class shares.
        config: strengths and probabilities.
        seed, step: what the draw depends on.
    Returns: as given; picture i holds `share` of i and the rest of B - 1 - i.
    """
    draw = np.random.default_rng([_STREAM, seed, step])
    if not (config.mixup or config.cutmix) or draw.random() >= config.probability:
        return crops, targets
    cuts = bool(config.cutmix) and (not config.mixup or draw.random() < config.switch_probability)
    alpha = config.cutmix if cuts else config.mixup
    share = float(draw.beta(alpha, alpha))
    if cuts:
        crops, share = _cut(crops, share, draw)
    else:
        crops = (crops.float() * share + crops.flip(0).float() * (1 - share)).round().to(crops.dtype)
    return crops, targets * share + targets.flip(0) * (1 - share)


def _cut(crops: Tensor, share: float, draw: np.random.Generator) -> tuple[Tensor, float]:
    """Paste a box of the reversed batch; returns the share that the box, cut at the border, really leaves."""
    height, width = crops.shape[1:3]
    half_y, half_x = (int(side * math.sqrt(1 - share)) // 2 for side in (height, width))
    y, x = int(draw.integers(height)), int(draw.integers(width))
    top, bottom = max(0, y - half_y), min(height, y + half_y)
    left, right = max(0, x - half_x), min(width, x + half_x)
    mixed = crops.clone()
    mixed[:, top:bottom, left:right] = crops.flip(0)[:, top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
