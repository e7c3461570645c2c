"""Detection at several sizes and rotations of one image, merged into one list of faces.

The network works best on upright faces of about 10 to 300 px. The first pass reduces the image to one size. If it finds
no faces or small ones, there is a larger pass, and a very small one for faces that fill the image. If no face has a
high score, and one of them does not score highest upright, rotated copies are searched: faces on their side have lower
scores and wrong landmarks.
Wide images, or all large ones if the settings say so, are searched at full size in overlapping tiles, so that the
memory does not depend on their size.
Boxes and landmarks are in pixels of the original image.
"""

import math
from collections.abc import Callable
from typing import Final

import cv2
import numpy as np

from mien.app.inference.records import Box, Detection
from mien.app.settings import InferenceSettings
from mien.data.contract import Array, DegenerateLandmarks
from mien.data.contract.align import similarity
from mien.models.detector.decode import turned_back

# (H, W, 3) uint8 RGB -> (N, 15) float32: x, y, width, height, five landmarks (x, y), score; pixels of that image
Network = Callable[[Array], Array]

MERGE_IOU: Final = 0.4
MIN_EYE_DISTANCE_PX: Final = 1.0
SMALL_FACE_PX: Final = 40.0
CLOSE_UP_PX: Final = 160
ROTATED_PX: Final = 480
# Upright faces in photos score 0.92 to 0.96, the same faces on their side or upside down 0.6 to 0.92.
SURE_SCORE: Final = 0.92
# Size of the crop for comparing rotations of a face, which fills five eighths of it: they differ most there.
COMPARED_PX: Final = 160
MAX_COMPARED: Final = 8
# A rotated face must score higher: an upside-down beard looks like hair.
ROTATED_MARGIN: Final = 0.01
ROTATED_SCORE: Final = 0.7
MIN_CANVAS_PX: Final = 64
# Long side over short side of an image of which the second pass, whose long side is limited, would see too little
TILED_ASPECT: Final = 3.0
# Part of a tile that the next one shares, and how many times smaller the next level is: a face that is cut at an edge
# is whole in the next tile, or smaller in the next level. The network finds faces from about 1/160 of a tile's side.
_TILE_OVERLAP: Final = 0.2
_LEVEL_RATIO: Final = 4
# Part of a tile's side from which a face is left to the next level; smaller ones are whole in a tile.
_LARGE_SHARE: Final = 0.14
_EDGE_PX: Final = 2
# Of 200 FERPlus faces of 48 px, the network finds 79 % at original size and 98 % enlarged to this size.
TINY_PX: Final = 144
MAX_ENLARGEMENT: Final = 4.0
_CODES: Final = (cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_COUNTERCLOCKWISE)  # 1, 2 and 3 quarter turns


def find_faces(image: Array, network: Network, settings: InferenceSettings) -> list[Detection]:
    """Find faces in (H, W, 3) uint8 RGB, largest first."""
    faces = _upright(image, network, settings)
    if settings.detect_rotated and max((face.score for face in faces), default=0.0) < SURE_SCORE:
        faces = _with_rotated(faces, image, network, settings)
    return largest_first(faces)


def _same(face: Detection, other: Detection) -> bool:
    return iou(face.box, other.box) >= MERGE_IOU


def is_tiled(width: int, height: int, settings: InferenceSettings) -> bool:
    """Whether an image of this size is searched at full size, in tiles."""
    longer, shorter = max(width, height), min(width, height)
    is_chosen = {"never": False, "wide": longer >= TILED_ASPECT * shorter, "always": True}[settings.detection_tiles]
    return is_chosen and longer > settings.detection_max_px


def _in_tiles(image: Array, network: Network, settings: InferenceSettings) -> list[Detection]:
    """Search the whole image, tiles of it at full size, tiles at a quarter of it, and so on."""
    height, width = image.shape[:2]
    px = settings.detection_max_px
    whole = [face for side in (CLOSE_UP_PX, settings.detection_px, px) for face in one_pass(image, network, side)]
    in_tiles, level, min_face_px = list[Detection](), image, 0.0
    while max(level.shape[:2]) > px:
        scale = (width / level.shape[1], height / level.shape[0])
        for top in _tile_starts(level.shape[0], px):
            for left in _tile_starts(level.shape[1], px):
                tile = level[top : top + px, left : left + px]
                found = (face for face in one_pass(tile, network, px) if _is_whole(face, tile, left, top, level))
                moved = (_moved(face, left, top).scaled(*scale) for face in found)
                in_tiles += [face for face in moved if face.box.short_side_px >= min_face_px]
        min_face_px = _LARGE_SHARE * px * scale[0]
        level = _resized(level, max(level.shape[:2]) // _LEVEL_RATIO)
    # a cheek or a mouth of a large face can look like a face in a tile
    return merge(whole + [face for face in in_tiles if not any(_is_part(face, other) for other in whole)])


def _is_part(face: Detection, larger: Detection) -> bool:
    """Return whether the center of a face is in another one with a higher score."""
    x, y, width, height = face.box
    left, top, larger_width, larger_height = larger.box
    inside = 0 < x + width / 2 - left < larger_width and 0 < y + height / 2 - top < larger_height
    return inside and larger.score > face.score


def _tile_starts(length: int, px: int) -> list[int]:
    count = math.ceil((length - px) / (px * (1 - _TILE_OVERLAP))) + 1 if length > px else 1
    return [round(start) for start in np.linspace(0, max(0, length - px), count)]


def _is_whole(face: Detection, tile: Array, left: int, top: int, image: Array) -> bool:
    """Return whether a face does not touch an edge of its tile, except where the image ends."""
    x, y, width, height = face.box
    right, bottom = left + tile.shape[1], top + tile.shape[0]
    return (
        (x > _EDGE_PX or left == 0)
        and (y > _EDGE_PX or top == 0)
        and (x + width < tile.shape[1] - _EDGE_PX or right == image.shape[1])
        and (y + height < tile.shape[0] - _EDGE_PX or bottom == image.shape[0])
    )


def _moved(face: Detection, left: int, top: int) -> Detection:
    x, y, width, height = face.box
    points = (face.landmarks_px + np.array([left, top])).astype(np.float32)
    return Detection(Box(x + left, y + top, width, height), points, face.score)


def _upright(image: Array, network: Network, settings: InferenceSettings) -> list[Detection]:
    if is_tiled(image.shape[1], image.shape[0], settings):
        return _in_tiles(image, network, settings)
    faces = one_pass(image, network, settings.detection_px)
    long_side = max(image.shape[:2])
    scale = min(1.0, settings.detection_px / long_side)
    if min((face.box.short_side_px for face in faces), default=0.0) * scale >= SMALL_FACE_PX:
        return faces
    # a pass of an image that is not larger than its size has the pixels of the first
    passes = ((CLOSE_UP_PX, long_side > CLOSE_UP_PX), (settings.detection_max_px, long_side > settings.detection_px))
    return merge(faces + [face for px, differs in passes if differs for face in one_pass(image, network, px)])


def one_pass(image: Array, network: Network, long_side_px: int) -> list[Detection]:
    """Run the network on the image reduced to a long side of at most `long_side_px`; faces are in original pixels."""
    height, width = image.shape[:2]
    small = _resized(image, long_side_px)
    rows = network(_padded(small))
    faces = [_face(row).scaled(width / small.shape[1], height / small.shape[0]) for row in rows]
    return [face for face in faces if plausible(face, width=width, height=height)]


def _resized(image: Array, long_side_px: int) -> Array:
    """Reduce to a long side of at most `long_side_px`, or enlarge tiny images up to four times."""
    height, width = image.shape[:2]
    long_side = max(height, width)
    scale = min(long_side_px / long_side, max(1.0, min(MAX_ENLARGEMENT, TINY_PX / long_side)))
    if scale == 1.0:
        return image
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(_halved(image, size), size, interpolation=cv2.INTER_AREA if scale < 1.0 else cv2.INTER_LINEAR)


def _halved(image: Array, size: tuple[int, int]) -> Array:
    """Halve an image, by means of 2x2 pixels, while it stays at least `size` (width, height).

    OpenCV reduces by whole factors twelve times as fast as by others, and the rest has a quarter of the pixels.
    """
    height, width = image.shape[:2]
    while width % 2 == height % 2 == 0 and width >= 2 * size[0] and height >= 2 * size[1]:
        width, height = width // 2, height // 2
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return image


def _padded(image: Array) -> Array:
    """Pad tiny images with black at the right and bottom, because the coarsest grid has cells of 32 px."""
    height, width = image.shape[:2]
    right, below = max(0, MIN_CANVAS_PX - width), max(0, MIN_CANVAS_PX - height)
    if not right and not below:
        return image
    return cv2.copyMakeBorder(image, 0, below, 0, right, cv2.BORDER_CONSTANT, value=(0, 0, 0))


def _face(row: Array) -> Detection:
    x, y, width, height = (float(value) for value in row[:4])
    return Detection(Box(x, y, width, height), row[4:14].reshape(5, 2).astype(np.float32), float(row[14]))


def merge(faces: list[Detection]) -> list[Detection]:
    """Greedy non-maximum suppression over all passes."""
    kept: list[Detection] = []
    for face in sorted(faces, key=lambda face: -face.score):
        if not any(_same(face, other) for other in kept):
            kept.append(face)
    return kept


def _with_rotated(
    upright: list[Detection], image: Array, network: Network, settings: InferenceSettings
) -> list[Detection]:
    """Estimate the rotation of the image, add the faces at this rotation, and remove upright ones that it fits better.

    The detection score alone is not enough: it depends on face size, and upside-down faces are detected too.
    """
    compared = dict[Box, Array]()

    def scores_of(face: Detection) -> Array:
        if face.box not in compared:
            compared[face.box] = rotation_scores(image, network, face)
        return compared[face.box]

    best = merge(upright)[:MAX_COMPARED]
    if best and all(scores_of(face).argmax() == 0 for face in best):
        return upright
    candidates = merge(upright + _in_small_copies(image, network))[:MAX_COMPARED]
    scores = np.array([scores_of(face) for face in candidates]).reshape(-1, 4)
    turns = int(np.bincount(scores.argmax(axis=1), scores.max(axis=1), minlength=4).argmax())  # each face votes
    if turns == 0:
        return upright

    def is_rotated(face: Detection) -> bool:
        return bool(scores_of(face)[turns] > scores_of(face)[0])

    height, width = image.shape[:2]
    faces = _upright(_rotated(image, turns), network, settings)
    rotated = [rotate_back(face, turns, width=width, height=height) for face in faces if face.score >= ROTATED_SCORE]
    kept = [face for face in upright if face.score >= SURE_SCORE or not is_rotated(face)]
    return merge(kept + [face for face in rotated if not any(_same(face, other) for other in kept) or is_rotated(face)])


def _in_small_copies(image: Array, network: Network) -> list[Detection]:
    """Faces in small copies rotated by 90, 180 and 270 degrees, in pixels of the image."""
    height, width = image.shape[:2]
    small = _resized(image, ROTATED_PX)
    scale_x, scale_y = width / small.shape[1], height / small.shape[0]
    sizes = (ROTATED_PX, CLOSE_UP_PX) if max(small.shape[:2]) > CLOSE_UP_PX else (ROTATED_PX,)
    return [
        rotate_back(face, turns, width=small.shape[1], height=small.shape[0]).scaled(scale_x, scale_y)
        for turns in (1, 2, 3)
        for px in sizes
        for face in one_pass(_rotated(small, turns), network, px)
    ]


def rotation_scores(image: Array, network: Network, face: Detection) -> Array:
    """Scores (4,) of one face rotated by 0, 90, 180 and 270 degrees, minus the margin if rotated."""
    around = _surroundings(image, face)
    center = COMPARED_PX / 2
    scores = np.zeros(4)
    for turns in range(4):
        rows = network(_rotated(around, turns))
        near = np.abs(rows[:, :2] + rows[:, 2:4] / 2 - center).max(axis=1, initial=0.0) < COMPARED_PX / 4
        scores[turns] = rows[near, 14].max(initial=0.0)
    return scores - ROTATED_MARGIN * (np.arange(4) > 0)


def _surroundings(image: Array, face: Detection) -> Array:
    """Square of 1.6 times the side of the face, resized to `COMPARED_PX`; black outside the image."""
    x, y, width, height = face.box
    half = max(1, round(0.8 * max(width, height)))
    left, top = round(x + width / 2) - half, round(y + height / 2) - half
    right, bottom = (
        left + 2 * half - image.shape[1],
        top + 2 * half - image.shape[0],
    )
    cut = image[max(0, top) : top + 2 * half, max(0, left) : left + 2 * half]
    edges = (max(0, -top), max(0, bottom), max(0, -left), max(0, right))
    square = cv2.copyMakeBorder(cut, *edges, cv2.BORDER_CONSTANT, value=(0, 0, 0))
    interpolation = cv2.INTER_AREA if 2 * half > COMPARED_PX else cv2.INTER_LINEAR
    return cv2.resize(square, (COMPARED_PX, COMPARED_PX), interpolation=interpolation)


def _rotated(image: Array, turns: int) -> Array:
    """Rotate clockwise by `turns` quarter turns."""
    return cv2.rotate(image, _CODES[turns - 1]) if turns else image


def rotate_back(face: Detection, turns: int, *, width: int, height: int) -> Detection:
    """Undo a clockwise rotation by `turns` quarter turns; `width` and `height` are those before it."""
    x, y, box_width, box_height = face.box
    corners = np.array([[x, y], [x + box_width, y + box_height]])
    points = turned_back(np.vstack([corners, face.landmarks_px]), turns, width=width, height=height)
    left, top = points[:2].min(axis=0)
    right, bottom = points[:2].max(axis=0)
    box = Box(float(left), float(top), float(right - left), float(bottom - top))
    return Detection(box, points[2:].astype(np.float32), face.score)


def plausible(face: Detection, *, width: int, height: int) -> bool:
    """Whether a detection can be a face in an image of this size.

    It must be finite, overlap the image, be at most three times its size, and have landmarks that define a crop. On
    images unlike its training data, a network can return boxes of 1e12 px with a score of 1.0.
    """
    x, y, box_width, box_height = face.box
    eyes = face.landmarks_px[1].astype(np.float64) - face.landmarks_px[0]
    return bool(
        all(map(math.isfinite, face.box))
        and np.isfinite(face.landmarks_px).all()
        and box_width > 0
        and box_height > 0
        and max(box_width, box_height) <= 3 * max(width, height)
        and min(x + box_width, width) > max(x, 0.0)
        and min(y + box_height, height) > max(y, 0.0)
        and np.hypot(*eyes) >= MIN_EYE_DISTANCE_PX
        and _can_be_framed(face)
    )


def _can_be_framed(face: Detection) -> bool:
    try:
        similarity(face.landmarks_px)
    except DegenerateLandmarks:
        return False
    return True


def largest_first(faces: list[Detection]) -> list[Detection]:
    """Sort by area, then by position, for a stable order."""
    return sorted(faces, key=lambda face: (-face.box.width * face.box.height, face.box.x, face.box.y))


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes, 0 to 1."""
    width = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
    height = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / (a.width * a.height + b.width * b.height - common)
