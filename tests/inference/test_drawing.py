"""What people see of a face: boxes, tags, attention maps, and probabilities as text."""

import numpy as np
import pytest

from mien.app.inference.drawing import annotate, overlay, percent
from mien.app.inference.records import Photo
from mien.data.contract.labels import COLORS
from tests.support import labeled_face


def test_an_uncertain_face_has_a_dashed_box_and_no_other_has() -> None:
    gray = np.full((480, 640, 3), 90, np.uint8)

    def share(*, uncertain: bool) -> float:
        face = labeled_face((200, 200, 120, 120), uncertain=uncertain, neutral=0.5)
        drawn = annotate(gray, Photo(640, 480, faces=(face,)))
        return float((drawn[320, 200:320] == COLORS["neutral"]).all(axis=1).mean())

    assert share(uncertain=False) == 1
    assert (gray == 90).all(), "the original is untouched"
    assert 0.3 < share(uncertain=True) < 0.8


@pytest.mark.parametrize("pitch", [(160, 150), (40, 45)], ids=["group", "dense crowd"])
def test_no_label_is_drawn_over_another_face_or_the_lower_half_of_its_own(pitch: tuple[int, int]) -> None:
    width, height = (4 * side // 5 for side in pitch)
    corners = [(x, y) for y in range(20, 450, pitch[1]) for x in range(20, 750, pitch[0])]
    faces = tuple(labeled_face((x, y, width, height), sadness=0.9) for x, y in corners)
    drawn = annotate(np.full((500, 800, 3), 90, np.uint8), Photo(800, 500, faces=faces))
    insides = [drawn[y + 6 : y + height - 6, x + 6 : x + width - 6] == 90 for x, y in corners]
    assert all(inside[height // 2 :].all() for inside in insides)
    assert sum(inside.all() for inside in insides) > len(faces) / 2
    assert (drawn == COLORS["sadness"]).all(axis=2).any()


def test_the_overlay_is_bright_where_the_map_is_high() -> None:
    relevance = np.zeros((7, 7), np.float32)
    relevance[1, 5] = 1
    drawn = overlay(np.full((112, 112, 3), 100, np.uint8), relevance).astype(int)
    assert drawn[48, 176].sum() > drawn[176, 48].sum() + 150


def test_no_text_claims_certainty() -> None:
    assert [percent(share) for share in (0.0, 0.496, 0.9949, 0.995, 1.0)] == ["0%", "50%", "99%", ">99%", ">99%"]
