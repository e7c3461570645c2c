"""Passes over one image: sizes, rotations and merging, with a fake network that finds drawn marks."""

import cv2
import numpy as np
import pytest

from mien.app.inference.detect.search import (
    COMPARED_PX,
    ROTATED_MARGIN,
    _halved,
    find_faces,
    is_tiled,
    merge,
    one_pass,
    rotation_scores,
)
from mien.app.inference.records import Box, Detection
from mien.app.settings import Settings
from mien.data.contract import Array, roll_degrees

SETTINGS = Settings(detection_px=640, detection_max_px=1600, detect_rotated=True)
SETTINGS_TILED = SETTINGS.model_copy(update={"detection_tiles": "wide"})
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

    def __init__(
        self, smallest: int = 20, largest: int = 300, scores: dict[int, tuple[float, float]] | None = None
    ) -> None:
        """`scores`: by the largest side in pixels, the scores of an upright face and of any other."""
        self.sizes: list[tuple[int, int]] = []
        self.smallest, self.largest = smallest, largest
        self.scores = scores or {largest: (0.95, 0.75)}

    def __call__(self, image: Array) -> Array:
        self.sizes.append((image.shape[1], image.shape[0]))
        colors = image.astype(int)
        marked = ((colors[..., 1] < 60) & (colors[..., [0, 2]].max(axis=2) > 60)).astype(np.uint8)
        count, _, boxes, _ = cv2.connectedComponentsWithStats(marked)
        rows = [self._row(colors, *(int(v) for v in boxes[index, :4])) for index in range(1, count)]
        return np.array([row for row in rows if row is not None], np.float32).reshape(-1, 15)

    def _row(self, colors: Array, x: int, y: int, width: int, height: int) -> list[float] | None:
        if not self.smallest <= max(width, height) <= self.largest:
            return None
        top = colors[y + height // 4, x + width // 2]
        bottom = colors[y + height * 3 // 4, x + width // 2]
        upright, other = next(scores for side, scores in self.scores.items() if max(width, height) <= side)
        score = upright if top[2] > bottom[2] else other
        points = [(0.3, 0.4), (0.7, 0.4), (0.5, 0.6), (0.35, 0.8), (0.65, 0.8)]
        landmarks = [value for px, py in points for value in (x + px * width, y + py * height)]
        return [x, y, width, height, *landmarks, score]


def test_one_upright_face_takes_one_pass() -> None:
    network = MarkFinder()
    faces = find_faces(photo(1280, 960, (300, 200, 400)), network, SETTINGS)
    assert network.sizes == [(640, 480)]
    assert faces[0].box == pytest.approx((300, 200, 400, 400), abs=4)


def test_a_small_face_in_a_large_photo_is_found_by_the_second_pass() -> None:
    network = MarkFinder()
    (face,) = find_faces(photo(3200, 2400, (1000, 1000, 60)), network, SETTINGS)
    assert face.box == pytest.approx((1000, 1000, 60, 60), abs=4)
    assert (1600, 1200) in network.sizes


def in_a_row(width: int, height: int, *, pitch: int, side: int) -> tuple[Array, list[tuple[int, int, int]]]:
    """A photo with faces at all positions relative to the tiles."""
    squares = [(x, 3 + x % (height - side - 6), side) for x in range(0, width - side, pitch)]
    return photo(width, height, *squares), squares


@pytest.mark.parametrize("turned", [False, True], ids=["panorama", "screenshot"])
def test_every_small_face_of_a_wide_image_is_found_once_in_tiles(turned: bool) -> None:
    image, squares = in_a_row(9600, 700, pitch=97, side=40)
    network = MarkFinder()
    found = find_faces(np.ascontiguousarray(image.swapaxes(0, 1)) if turned else image, network, SETTINGS_TILED)
    expected = [(y, x, side) if turned else (x, y, side) for x, y, side in squares]
    boxes = sorted((round(face.box.x), round(face.box.y), round(face.box.width)) for face in found)
    assert boxes == sorted(expected)
    assert max(max(size) for size in network.sizes) <= 1600, "memory does not depend on the size of the image"


@pytest.mark.parametrize("side", [25, 300, 1000, 1900])
def test_faces_of_all_sizes_are_found_in_tiles(side: int) -> None:
    chosen = SETTINGS.model_copy(update={"detection_tiles": "always"})
    (face,) = find_faces(photo(4300, 2900, (1400, 700, side)), MarkFinder(), chosen)
    assert face.box == pytest.approx((1400, 700, side, side), abs=max(2, side / 40))


@pytest.mark.parametrize(
    ("size", "tiles", "tiled"),
    [
        ((4800, 1600), "wide", True), ((1600, 4800), "wide", True), ((4800, 1601), "wide", False),
        ((1600, 100), "wide", False), ((1601, 1600), "always", True), ((1600, 1600), "always", False),
        ((24_000, 1500), "never", False),
    ],
)  # fmt: skip
def test_wide_images_and_on_request_all_large_ones_are_tiled(size: tuple[int, int], tiles: str, tiled: bool) -> None:
    assert is_tiled(*size, SETTINGS.model_copy(update={"detection_tiles": tiles})) is tiled


def test_an_upright_close_up_stays_upright_though_it_scores_higher_upside_down() -> None:
    """Scores also depend on size: near the largest size that the network sees, they say little about rotation."""
    network = MarkFinder(largest=700, scores={300: (0.95, 0.75), 700: (0.89, 0.93)})
    (face,) = find_faces(photo(640, 640, (40, 30, 560)), network, SETTINGS)
    assert roll_degrees(face.landmarks_px) == pytest.approx(0, abs=2)
    assert network.sizes == [(640, 640)] + [(COMPARED_PX, COMPARED_PX)] * 4  # no copies are searched


def test_a_face_on_its_side_is_searched_for_though_another_one_is_upright() -> None:
    """A false face can be upright; more than one of three votes decide."""
    network = MarkFinder(scores={95: (0.85, 0.8), 300: (0.95, 0.75)})
    mixed = photo(640, 480, (40, 40, 90))
    mixed[:, 200:] = cv2.rotate(photo(480, 440, (40, 40, 200), (260, 240, 200)), cv2.ROTATE_90_CLOCKWISE)
    faces = find_faces(mixed, network, SETTINGS)
    assert [round(roll_degrees(face.landmarks_px)) % 360 for face in faces[:2]] == [90, 90]


@pytest.mark.parametrize(("turns", "code"), [(1, 0), (2, 1), (3, 2)])
def test_a_rotated_close_up_is_rotated_though_it_scores_higher_unrotated(turns: int, code: int) -> None:
    network = MarkFinder(largest=700, scores={300: (0.95, 0.75), 700: (0.85, 0.88)})
    (face,) = find_faces(cv2.rotate(photo(640, 640, (40, 30, 560)), code), network, SETTINGS)
    assert roll_degrees(face.landmarks_px) % 360 == pytest.approx(90 * turns, abs=2)


@pytest.mark.parametrize("box", [(-40, -60, 300, 300), (500, 400, 300, 260), (10, 20, 3, 3), (-5, -5, 660, 660)])
def test_a_face_at_the_edge_is_compared_in_all_rotations(box: Box) -> None:
    sizes = []

    def network(image: Array) -> Array:
        sizes.append(image.shape[:2])
        return np.array([[30, 30, 100, 100, *range(10), 0.8]], np.float32)

    scores = rotation_scores(photo(640, 480), network, Detection(box, np.zeros((5, 2), np.float32), 0.9))
    assert scores == pytest.approx([0.8, 0.8 - ROTATED_MARGIN, 0.8 - ROTATED_MARGIN, 0.8 - ROTATED_MARGIN])
    assert sizes == [(COMPARED_PX, COMPARED_PX)] * 4


def test_a_photo_on_its_side_stays_as_it_is_if_rotation_is_off() -> None:
    network = MarkFinder()
    turned = cv2.rotate(photo(900, 600, (100, 150, 200)), cv2.ROTATE_180)
    (face,) = find_faces(turned, network, SETTINGS.model_copy(update={"detect_rotated": False}))
    assert roll_degrees(face.landmarks_px) == pytest.approx(0, abs=1)
    assert len(network.sizes) == 1


@pytest.mark.parametrize("shape", [(1, 1), (1, 3000), (3000, 1), (31, 33), (7, 2), (20, 48)])
def test_an_image_of_an_unusual_size_is_enlarged_and_has_no_face(shape: tuple[int, int]) -> None:
    network = MarkFinder()
    assert find_faces(np.full((*shape, 3), 90, np.uint8), network, SETTINGS) == []
    assert min(min(size) for size in network.sizes) >= 60, "never smaller than the network can see"


def test_results_that_are_not_coordinates_are_dropped() -> None:
    def absurd(image: Array) -> Array:
        return np.array([[-1e12, -1e12, 2e12, 2e12, *range(10), 1.0], [np.nan] * 15], np.float32)

    assert one_pass(np.zeros((32, 32, 3), np.uint8), absurd, 640) == []


def test_the_better_of_two_detections_of_one_face_is_kept() -> None:
    landmarks = np.zeros((5, 2), np.float32)
    better, worse = Detection(Box(0, 0, 100, 100), landmarks, 0.9), Detection(Box(5, 5, 100, 100), landmarks, 0.8)
    apart = Detection(Box(300, 0, 100, 100), landmarks, 0.7)
    assert merge([worse, apart, better]) == [better, apart]


@pytest.mark.parametrize(
    ("width", "height", "size", "halved"),
    [
        (1200, 800, (320, 214), (600, 400)),
        (1200, 800, (80, 54), (150, 100)),
        (1201, 800, (320, 213), (1201, 800)),  # an odd side has no exact half
        (600, 401, (320, 214), (600, 401)),
        (600, 400, (320, 214), (600, 400)),  # half would be smaller than the requested size
        (640, 400, (320, 200), (320, 200)),
    ],
)
def test_an_image_is_halved_exactly_and_never_too_far(
    width: int, height: int, size: tuple[int, int], halved: tuple[int, int]
) -> None:
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    result = _halved(image, size)
    assert (result.shape[1], result.shape[0]) == halved
    times = width // halved[0]
    blocks = image.reshape(halved[1], times, halved[0], times, 3).mean(axis=(1, 3))
    assert np.abs(result - blocks).max() <= 1.5, "the mean of the pixels behind each pixel"
