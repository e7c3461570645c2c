"""Near-duplicate images: the same photo except for compression, brightness, contrast or a few pixels.

Two images are near-duplicates if the Pearson correlation of their 16x16 gray thumbnails is above 0.95. Brightness and
contrast do not affect it.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import cv2
import numpy as np

from mien.data.contract import Array

THUMBNAIL_PX: Final = 16
MIN_CORRELATION: Final = 0.95
_ROWS_AT_ONCE: Final = 2048


def thumbnails(images: Iterable[Array]) -> Array:
    """Centered thumbnails of norm 1, so that their dot product is the correlation; all zeros for a flat image.

    Args:
        images: (H, W, 3) uint8 each, RGB.
    Returns: (N, 256) float32.
    """
    rows = []
    for image in images:
        gray = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float32)
        small = cv2.resize(gray, (THUMBNAIL_PX, THUMBNAIL_PX), interpolation=cv2.INTER_AREA).reshape(-1)
        centered = small - small.mean()
        rows.append(np.asarray(centered / max(float(np.linalg.norm(centered)), 1e-6), dtype=np.float32))
    return np.stack(rows) if rows else np.zeros((0, THUMBNAIL_PX**2), np.float32)


def near_duplicate_groups(rows: Array) -> Array:
    """Group near-duplicates, transitively; returns (N,) the index of the first image of each image's group.

    Args:
        rows: (N, 256), from `thumbnails`.
    """
    from scipy import sparse  # of training, which alone groups images

    alike = sparse.vstack([sparse.csr_array(part) for part in _alike(rows, rows)])
    _, group = sparse.csgraph.connected_components(alike, directed=False)
    first = np.unique(group, return_index=True)[1]
    groups: Array = first[group]
    return groups


def near_duplicates(own: Array, others: Array) -> Array:
    """Which rows of `own`, (N, 256), resemble any row of `others`, (M, 256), both from `thumbnails`; (N,) bool."""
    return np.concatenate([np.zeros(0, bool), *(part.any(axis=1) for part in _alike(own, others))])


def _alike(own: Array, others: Array) -> Iterator[Array]:
    """Which rows of `own` resemble which of `others`, (some of N, M) bool each."""
    for start in range(0, len(own), _ROWS_AT_ONCE):
        yield own[start : start + _ROWS_AT_ONCE] @ others.T > MIN_CORRELATION
