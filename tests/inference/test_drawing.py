"""Boxes and labels on annotated images."""

from itertools import combinations

import numpy as np
import pytest

from mien.app.inference.drawing import Rectangle, annotate, place_tags, reduced
from mien.app.inference.records import Photo
from mien.data.contract.palette import COLORS
from tests.support import labeled_face

GRAY = np.full((480, 640, 3), 90, np.uint8)


def shared(one: Rectangle, other: Rectangle) -> int:
    width, height = min(one[2], other[2]) - max(one[0], other[0]), min(one[3], other[3]) - max(one[1], other[1])
    return max(0, width) * max(0, height)


def test_an_uncertain_face_has_a_dashed_box_and_no_other_has() -> None:
    def share(*, uncertain: bool) -> float:
        face = labeled_face((200, 200, 120, 120), uncertain=uncertain, neutral=0.5)
        drawn = annotate(GRAY, Photo(640, 480, (face,)))
        return float((drawn[320, 200:320] == COLORS["neutral"]).all(axis=1).mean())

    assert share(uncertain=False) == 1
    assert (GRAY == 90).all(), "the original is untouched"
    assert 0.3 < share(uncertain=True) < 0.8


def test_tags_of_a_crowded_image_do_not_collide_or_leave_it() -> None:
    boxes = [(40 * column + 10, 90 * row, 40 * column + 46, 90 * row + 40) for row in range(4) for column in range(8)]
    sizes = [(34, 14)] * len(boxes)
    places = place_tags(boxes, sizes, (340, 330))
    assert not [pair for pair in combinations(places, 2) if shared(*pair)]
    assert all(left >= 0 and top >= 0 and right <= 340 and bottom <= 330 for left, top, right, bottom in places)


@pytest.mark.parametrize("box", [(0, 0, 640, 480), (100, 0, 500, 480), (200, 200, 300, 300)])
def test_a_tag_never_covers_the_mouth_of_its_face(box: Rectangle) -> None:
    (place,) = place_tags([box], [(180, 40)], (640, 480))
    left, top, right, bottom = box
    mouth = (left + (right - left) // 4, top + 2 * (bottom - top) // 3, right - (right - left) // 4, bottom)
    assert not shared(place, mouth)


def test_images_are_reduced_and_never_enlarged() -> None:
    assert reduced(np.zeros((1500, 3000, 3), np.uint8), 1600).shape == (800, 1600, 3)
    assert reduced(GRAY, 1600) is GRAY
