"""Conversion of logits to calibrated probabilities, shared by serving, calibration and the report."""

from collections.abc import Sequence

import numpy as np

from mien.data.contract.align import Array


def softmax(logits: Array, temperature: float = 1.0, offsets: Sequence[float] | float = 0.0) -> Array:
    """Softmax over the last axis of logits divided by the temperature (Guo et al. 2017), plus an offset per class.

    Args:
        logits: (..., C), any float type.
        temperature: above 1 flattens the distribution, below 1 sharpens it.
        offsets: C numbers added to the scaled logits, such as a correction for rare classes (Menon et al. 2021).
    Returns: (..., C) float64; rows sum to 1.
    """
    scaled = logits.astype(np.float64) / temperature + np.asarray(offsets)
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))  # the largest exponent is 0: no overflow
    probabilities: Array = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities
