"""Detection of near-duplicate images."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from mien.data.contract import Array, decode
from mien.data.near_duplicates import near_duplicates, thumbnails
from tests.data_sets import draw_face
from tests.support import encoded


def _face(label: str, seed: int) -> Array:
    return draw_face(label, seed, size_px=48, gray=True)[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda image: (image * 0.6 + 10).astype(np.uint8),
        lambda image: decode(encoded(image, "JPEG", quality=40)),
        lambda image: cv2.resize(image, (112, 112), interpolation=cv2.INTER_LINEAR),
    ],
    ids=["darker", "compressed", "larger"],
)
def test_a_changed_copy_is_a_near_duplicate(change: Callable[[Array], Array]) -> None:
    face, other = _face("happiness", 1), _face("sadness", 2)
    found = near_duplicates(thumbnails([face, other]), thumbnails([change(face)]))
    assert found.tolist() == [True, False]


def test_flat_images_resemble_nothing() -> None:
    flat = thumbnails([np.full((48, 48, 3), value, np.uint8) for value in (0, 255)])
    assert not near_duplicates(flat, flat).any()


def test_no_images_have_no_near_duplicates() -> None:
    assert near_duplicates(thumbnails([_face("fear", 1)]), thumbnails([])).tolist() == [False]
    assert near_duplicates(thumbnails([]), thumbnails([_face("fear", 1)])).tolist() == []
