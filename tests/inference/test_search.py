"""Passes over one image: sizes, rotations and merging, with a fake network that finds drawn marks."""

import cv2
import numpy as np
import pytest

from mien.app.inference.detector import COMPARED_PX, Detection, _is_part, find_faces, plausible
from mien.app.inference.records import Box
from mien.app.settings import Settings
from mien.data.contract import Array, roll_degrees

SETTINGS = Settings(detect_rotated=True)
EYES_APART = np.array([[30, 40], [70, 40], [50, 60], [35, 80], [65, 80]], np.float32)
# A drawn "face" is a red square; the upper half of an upright one is blue.
RED, BLUE = (255, 0, 0), (0, 0, 255)


def photo(width: int, height: int, *squares: tuple[int, int, int]) -> Array:
    image = np.full((height, width, 3), 128, np.uint8)
    for x, y, side in squares:
        cv2.rectangle(image, (x, y), (x + side - 1, y + side - 1), RED, -1)
        cv2.rectangle(image, (x, y), (x + side - 1, y + side // 2 - 1), BLUE, -1)
    return image


class MarkFinder:
    """Returns a row for each drawn face within its range of sizes; only upright ones get a high score."""

    def __init__(self, scores: dict[int, tuple[float, float]] | None = None) -> None:
        """`scores`: by the largest side in pixels, the scores of an upright face and of any other."""
        self.sizes: list[tuple[int, int]] = []
        self.scores = scores or {300: (0.95, 0.75)}

    def __call__(self, image: Array) -> Array:
        self.sizes.append((image.shape[1], image.shape[0]))
        marked = ((image[..., 1] < 60) & (np.maximum(image[..., 0], image[..., 2]) > 60)).astype(np.uint8)
        count, _, boxes, _ = cv2.connectedComponentsWithStats(marked)
        rows = [self._row(image, *(int(v) for v in boxes[index, :4])) for index in range(1, count)]
        return np.array([row for row in rows if row is not None], np.float32).reshape(-1, 15)

    def _row(self, image: Array, x: int, y: int, width: int, height: int) -> list[float] | None:
        if not 20 <= max(width, height) <= max(self.scores):
            return None
        top = image[y + height // 4, x + width // 2]
        bottom = image[y + height * 3 // 4, x + width // 2]
        upright, other = next(scores for side, scores in self.scores.items() if max(width, height) <= side)
        score = upright if top[2] > bottom[2] else other
        points = [(0.3, 0.4), (0.7, 0.4), (0.5, 0.6), (0.35, 0.8), (0.65, 0.8)]
        landmarks = [value for px, py in points for value in (x + px * width, y + py * height)]
        return [x, y, width, height, *landmarks, score]


def test_an_upright_face_takes_one_pass_unless_it_is_small_in_a_large_photo_or_fills_the_image() -> None:
    for size, square, searched in (
        ((1280, 960), (300, 200, 400), [(640, 480)]),
        ((100, 100), (30, 20, 30), [(144, 144)]),
        ((160, 160), (30, 20, 30), [(160, 160)]),
        ((3200, 2400), (1000, 1000, 60), [(640, 480), (160, 120), (1600, 1200)]),
        ((640, 640), (40, 30, 560), [(640, 640), (160, 160)]),
    ):
        network = MarkFinder()
        (face,) = find_faces(photo(*size, square), network, SETTINGS)
        assert network.sizes == searched
        assert tuple(face.box) == pytest.approx((*square, square[2]), abs=8 if square[2] > 500 else 4)


def test_scenes_drawn_at_random_have_the_recorded_passes_and_faces() -> None:
    """Faces of all sizes, cut by edges and overlapping, in images of all shapes, at all rotations and settings."""
    random, passes, found = np.random.default_rng(1), list[int](), list[list[float]]()
    for number in range(24):
        width, height = random.choice([40, 90, 180, 420, 700, 1300, 2600], 2).tolist()
        squares = []
        for side in (random.uniform(0.02, 0.9, number % 5) ** 1.5 * min(width, height) + 12).astype(int).tolist():
            left, top = random.integers(-side // 4, (width - side // 2, height - side // 2)).tolist()
            squares.append((left, top, side))
        scores, tiles = random.uniform(0.5, 0.95, 2).tolist(), ("never", "wide", "always")[number % 3]
        network = MarkFinder({300: (0.95, 0.75), 700: scores})
        settings = SETTINGS.model_copy(update={"detection_tiles": tiles, "detect_rotated": number % 4 > 0})
        image = np.ascontiguousarray(np.rot90(photo(width, height, *squares), random.integers(4)))
        faces = find_faces(image, network, settings)
        passes.append(sum(w + 3 * h for w, h in network.sizes))
        found += [[*face.box, *face.landmarks_px.ravel().tolist(), face.score] for face in faces]
    assert (len(found), sum(passes)) == (33, 278994)
    assert np.sum(found @ np.arange(1, 16) ** 2) == pytest.approx(11965342.255104803)


@pytest.mark.parametrize(("side", "last"), [(1200, 480), (640, 480), (320, 240)])
def test_an_image_in_which_nothing_is_found_is_searched_once_more_at_another_size(side: int, last: int) -> None:
    """As some large, clear faces are missed at a few sizes only."""
    marks = MarkFinder({700: (0.95, 0.75)})

    def network(image: Array) -> Array:
        rows = marks(image)
        return rows if max(image.shape) == last else rows[:0]

    (face,) = find_faces(photo(side, side, (side // 4, side // 4, side // 2)), network, SETTINGS)
    assert tuple(face.box) == pytest.approx((side // 4, side // 4, side // 2, side // 2), abs=4)
    assert marks.sizes.count((last, last)) == 1


def test_every_small_face_of_a_wide_image_is_found_once_in_tiles() -> None:
    squares = [(x, 3 + x % 654, 40) for x in range(0, 9560, 97)]  # at all positions relative to the tiles
    network, chosen = MarkFinder(), SETTINGS.model_copy(update={"detection_tiles": "wide"})
    found = find_faces(photo(9600, 700, *squares), network, chosen)
    boxes = sorted((round(face.box.x), round(face.box.y), round(face.box.width)) for face in found)
    assert boxes == squares
    assert max(max(size) for size in network.sizes) <= 1600, "memory does not depend on the size of the image"


def test_faces_of_all_sizes_are_found_in_tiles_and_a_part_of_a_large_one_is_no_face() -> None:
    image = photo(3000, 2400, (1000, 800, 1000))
    for x, y in ((1500, 1500), (1500, 300), (300, 1500)):
        cv2.rectangle(image, (x - 20, y - 20), (x + 50, y + 50), (128, 128, 128), -1)
        cv2.rectangle(image, (x, y), (x + 29, y + 29), RED, -1)
    chosen = SETTINGS.model_copy(update={"detection_tiles": "always"})
    for side in (25, 1900):
        (face,) = find_faces(photo(2300, 2000, (340, 40, side)), MarkFinder(), chosen)
        assert tuple(face.box) == pytest.approx((340, 40, side, side), abs=max(2, side / 20))
    found = find_faces(image, MarkFinder(), chosen)
    assert [(round(face.box.x, -2), round(face.box.y, -2)) for face in found] == [(1000, 800), (300, 1500), (1500, 300)]
    large = Detection(Box(0, 0, 100, 100), EYES_APART, 0.9)
    for x, y, is_part in ((93, 50, True), (95, 50, False), (50, 93, True), (50, 95, False), (-7, 50, False)):
        assert _is_part(Detection(Box(x, y, 12, 12), EYES_APART, 0.8), large) is is_part
        assert not _is_part(Detection(Box(x, y, 12, 12), EYES_APART, 0.9), large)


def test_an_upright_close_up_stays_upright_though_it_scores_higher_upside_down() -> None:
    """Scores also depend on size: near the largest size that the network sees, they say little about rotation."""
    network = MarkFinder({300: (0.95, 0.75), 700: (0.89, 0.93)})
    (face,) = find_faces(photo(640, 640, (40, 30, 560)), network, SETTINGS)
    assert roll_degrees(face.landmarks_px) == pytest.approx(0, abs=2)
    assert network.sizes == [(640, 640)] + [(COMPARED_PX, COMPARED_PX)] * 4  # no copies are searched


def test_a_rotated_close_up_is_rotated_though_it_scores_higher_unrotated() -> None:
    network, fixed = MarkFinder({300: (0.95, 0.75), 700: (0.85, 0.88)}), {"detect_rotated": False}
    for turns, code in ((1, cv2.ROTATE_90_CLOCKWISE), (2, cv2.ROTATE_180), (3, cv2.ROTATE_90_COUNTERCLOCKWISE)):
        rotated = cv2.rotate(photo(640, 640, (40, 30, 560)), code)
        (face,) = find_faces(rotated, network, SETTINGS)
        assert roll_degrees(face.landmarks_px) % 360 == pytest.approx(90 * turns, abs=2)
        (as_it_is,) = find_faces(rotated, network, SETTINGS.model_copy(update=fixed))
        assert roll_degrees(as_it_is.landmarks_px) == pytest.approx(0, abs=2)


def test_an_image_of_an_unusual_size_is_enlarged_and_has_no_face() -> None:
    for shape in ((1, 1), (1, 3000), (20, 48)):
        network = MarkFinder()
        assert find_faces(np.full((*shape, 3), 90, np.uint8), network, SETTINGS) == []
        assert min(min(size) for size in network.sizes) >= 60, "never smaller than the network can see"


def test_what_cannot_be_in_this_image_is_not_a_face() -> None:
    nan_mouth = np.where(EYES_APART == 65, np.nan, EYES_APART)
    for box, landmarks in (
        (Box(-1e12, -1e12, 2e12, 2e12), EYES_APART),  # what OpenCV returns for an image of 32 px
        (Box(10, 10, np.nan, 50), EYES_APART),
        (Box(200, 200, 50, 50), EYES_APART),
        (Box(10, 10, 80, 80), nan_mouth),
        (Box(10, 10, 80, 80), np.zeros((5, 2), np.float32)),  # both eyes at the same place
    ):
        assert not plausible(Detection(box, landmarks, 0.9), width=100, height=100)
    cut = Detection(Box(-20, -30, 90, 120), EYES_APART, 0.9)
    assert plausible(cut, width=100, height=100), "a face cut by the edge is one"


def test_faces_are_sorted_by_size_and_equal_ones_by_position() -> None:
    image = photo(640, 480, (20, 20, 60), (400, 300, 100), (100, 300, 100))
    assert [round(face.box.x) for face in find_faces(image, MarkFinder(), SETTINGS)] == [100, 400, 20]
