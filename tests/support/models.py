"""Helpers for tests of networks: small configurations and random crops."""

import numpy as np
import torch

from mien.data.contract import CROP_PX
from mien.models.backbones import BackboneConfig

DEIT = "deit_tiny_distilled_patch16_224"
SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}


def crops(count: int, *, channels: int = 3) -> torch.Tensor:
    """Noise, (count, 112, 112, channels) uint8."""
    shape = (count, CROP_PX, CROP_PX, channels)
    return torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def config(name: str = DEIT, *, family: str = "deit", img_size: int = 112, **options: object) -> BackboneConfig:
    """Configuration of a backbone for luminance."""
    return BackboneConfig(family=family, name=name, img_size=img_size, options=dict(options))
