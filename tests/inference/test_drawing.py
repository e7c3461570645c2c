"""What people see of a face: boxes, tags, attention maps, and probabilities as text."""

from itertools import combinations

import numpy as np
import pytest

from mien.app.inference.drawing import Rectangle, annotate, overlay, place_tags, reduced
from mien.app.inference.records import Photo
from mien.app.inference.wording import percent
from mien.data.contract.palette import COLORS
from tests.support import labeled_face

GRAY = np.full((480, 640, 3), 90, np.uint8)
CROWD = [(40 * column + 10, 90 * row, 40 * column + 46, 90 * row + 40) for row in range(4) for column in range(8)]


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


@pytest.mark.parametrize(
    ("boxes", "size", "area"),
    [
        (CROWD, (34, 14), (340, 330)),
        ([(0, 0, 640, 480)], (180, 40), (640, 480)),
        ([(100, 0, 500, 480)], (180, 40), (640, 480)),
        ([(200, 200, 300, 300)], (180, 40), (640, 480)),
    ],
    ids=["crowd", "whole image", "whole height", "small face"],
)
def test_every_tag_has_its_place_in_the_image_off_other_tags_and_mouths(
    boxes: list[Rectangle], size: tuple[int, int], area: tuple[int, int]
) -> None:
    places = [place for place in place_tags(boxes, [size] * len(boxes), area) if place is not None]
    assert len(places) == len(boxes)
    assert not [pair for pair in combinations(places, 2) if shared(*pair)]
    assert all(x >= 0 and y >= 0 and right <= area[0] and bottom <= area[1] for x, y, right, bottom in places)
    for left, top, right, bottom in boxes:
        mouth = (left + (right - left) // 4, top + 2 * (bottom - top) // 3, right - (right - left) // 4, bottom)
        assert not any(shared(place, mouth) for place in places)


def test_labels_of_a_portrait_and_of_people_behind_it_have_one_legible_size() -> None:
    faces = (labeled_face((300, 300, 700, 700), anger=0.9), labeled_face((60, 500, 60, 60), fear=0.9))
    drawn = annotate(np.full((1200, 1600, 3), 90, np.uint8), Photo(1600, 1200, faces))
    heights = [
        int((drawn[face.box.y - 60 : face.box.y - 4, face.box.x + 3] == COLORS[face.label]).all(axis=1).sum())
        for face in faces
    ]
    assert heights[0] == heights[1] >= 20, "of the tag, left of its text"


@pytest.mark.parametrize("pitch", [(160, 150), (40, 45)], ids=["group", "dense crowd"])
def test_no_label_is_drawn_over_another_face_or_the_lower_half_of_its_own(pitch: tuple[int, int]) -> None:
    width, height = (4 * side // 5 for side in pitch)
    corners = [(x, y) for y in range(20, 450, pitch[1]) for x in range(20, 750, pitch[0])]
    faces = tuple(labeled_face((x, y, width, height), sadness=0.9) for x, y in corners)
    drawn = annotate(np.full((500, 800, 3), 90, np.uint8), Photo(800, 500, faces))
    insides = [drawn[y + 6 : y + height - 6, x + 6 : x + width - 6] == 90 for x, y in corners]
    assert all(inside[height // 2 :].all() for inside in insides)
    assert sum(inside.all() for inside in insides) > len(faces) / 2
    assert (drawn == COLORS["sadness"]).all(axis=2).any()


@pytest.mark.parametrize("ground", [255, 200, 0])
def test_boxes_are_visible_on_any_ground(ground: int) -> None:
    drawn = annotate(
        np.full((1200, 1600, 3), ground, np.uint8), Photo(1600, 1200, (labeled_face((300, 300, 700, 700)),))
    )
    line = drawn[600, 280:320].astype(int).sum(axis=1) // 3
    assert (line < 30).sum() >= 4, "a dark outline"
    assert (line > 80).sum() >= 4, "around a light line"


def test_images_are_reduced_and_never_enlarged() -> None:
    assert reduced(np.zeros((1500, 3000, 3), np.uint8), 1600).shape == (800, 1600, 3)
    assert reduced(GRAY, 1600) is GRAY


def test_the_overlay_is_bright_where_the_map_is_high() -> None:
    relevance = np.zeros((7, 7), np.float32)
    relevance[1, 5] = 1
    drawn = overlay(np.full((112, 112, 3), 100, np.uint8), relevance).astype(int)
    assert drawn[48, 176].sum() > drawn[176, 48].sum() + 150
    flat = overlay(np.full((112, 112, 3), 100, np.uint8), np.full((7, 7), 1 / 49, np.float32))
    assert np.ptp(flat.reshape(-1, 3), axis=0).max() == 0, "a uniform map has a uniform overlay"


@pytest.mark.parametrize(
    ("probability", "words"),
    [(0.0, "0%"), (0.496, "50%"), (0.9949, "99%"), (0.995, ">99%"), (0.99997, ">99%"), (1.0, ">99%")],
)
def test_no_text_claims_certainty(probability: float, words: str) -> None:
    assert percent(probability) == words
