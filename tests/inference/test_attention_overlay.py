"""Attention maps drawn over a crop."""

import numpy as np

from mien.app.inference.attention_overlay import overlay


def test_the_overlay_is_bright_where_the_map_is_high() -> None:
    relevance = np.zeros((7, 7), np.float32)
    relevance[1, 5] = 1
    drawn = overlay(np.full((112, 112, 3), 100, np.uint8), relevance).astype(int)
    assert drawn[48, 176].sum() > drawn[176, 48].sum() + 150
    flat = overlay(np.full((112, 112, 3), 100, np.uint8), np.full((7, 7), 1 / 49, np.float32))
    assert np.ptp(flat.reshape(-1, 3), axis=0).max() == 0, "a uniform map has a uniform overlay"
