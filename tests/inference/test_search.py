"""Passes over one image: sizes, rotations and merging, with a fake network that finds drawn marks."""

import cv2
import numpy as np
import pytest

from mien.app.inference.detector import Detection, _is_part, find_faces, plausible
from mien.app.inference.records import Box
from mien.app.settings import Settings
from mien.data.contract import Array

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
        rows = []
        for x, y, width, height, _ in cv2.connectedComponentsWithStats(marked)[2][1:].tolist():
            if 20 <= max(width, height) <= max(self.scores):
                scores = next(scores for side, scores in self.scores.items() if max(width, height) <= side)
                top, bottom = (image[y + height * quarter // 4, x + width // 2] for quarter in (1, 3))
                points = [(0.3, 0.4), (0.7, 0.4), (0.5, 0.6), (0.35, 0.8), (0.65, 0.8)]
                landmarks = [value for px, py in points for value in (x + px * width, y + py * height)]
                rows.append([x, y, width, height, *landmarks, scores[bool(top[2] <= bottom[2])]])
        return np.array(rows, np.float32).reshape(-1, 15)


def test_scenes_drawn_at_random_have_the_recorded_passes_and_faces() -> None:
    """Faces of all sizes, cut by edges and overlapping, in images of all shapes, at all rotations and settings."""
    random, passes, found = np.random.default_rng(1), list[int](), list[list[float]]()
    for number in range(24):
        width, height = random.choice([40, 90, 160, 420, 640, 1300, 2600], 2).tolist()
        squares = []
        for side in (random.uniform(0.02, 0.9, number % 5) ** 1.5 * min(width, height) + 12).astype(int).tolist():
            left, top = random.integers(-side // 4, (width - side // 2, height - side // 2)).tolist()
            squares.append((left, top, side))
        scores, tiles = random.uniform(0.5, 0.95, 2).tolist(), ("never", "wide", "always")[number % 3]
        network = MarkFinder({300: (0.95, 0.75), 700: scores})
        settings = SETTINGS.model_copy(update={"detection_tiles": tiles, "detect_rotated": number % 4 > 0})
        image = np.ascontiguousarray(np.rot90(photo(width, height, *squares), random.integers(4)))
        faces = find_faces(image, network, settings, live=number % 7 == 6)
        passes.append(sum(w + 3 * h for w, h in network.sizes))
        found += [[*face.box, *face.landmarks_px.ravel().tolist(), face.score] for face in faces]
    assert (len(found), sum(passes)) == (33, 273571)
    assert np.sum(found @ np.arange(1, 16) ** 2) == pytest.approx(11779583.570278853)


def test_every_small_face_of_a_long_image_is_found_once_in_tiles() -> None:
    chosen = SETTINGS.model_copy(update={"detection_tiles": "wide"})
    # all positions relative to the tiles, and the edges of the image
    positions = [*((along, along % 660) for along in range(0, 9560, 97)), (9560, 330)]
    for width, height, squares in (
        (9600, 700, [(x, y, 40) for x, y in positions]),
        (700, 9600, [(x, y, 40) for y, x in positions]),
    ):
        network = MarkFinder()
        found = find_faces(photo(width, height, *squares), network, chosen)
        assert {(round(face.box.x), round(face.box.y), round(face.box.width)) for face in found} == set(squares)
        assert len(found) == len(squares)
        assert max(max(size) for size in network.sizes) <= 1600, "memory does not depend on the size of the image"


def test_a_part_of_a_larger_face_and_a_face_of_one_eye_are_none() -> None:
    large = Detection(Box(20, 30, 100, 100), EYES_APART, 0.9)
    for x, y, is_part in ((93, 50, True), (95, 50, False), (50, 93, True), (50, 95, False), (-7, 50, False)):
        assert _is_part(Detection(Box(20 + x, 30 + y, 12, 12), EYES_APART, 0.8), large) is is_part
        assert not _is_part(Detection(Box(20 + x, 30 + y, 12, 12), EYES_APART, 0.9), large)
    one_eye = np.vstack([EYES_APART[:1], EYES_APART[:1] + 0.5, EYES_APART[2:]])
    assert not plausible(Detection(large.box, one_eye, 0.9), width=100, height=100)
