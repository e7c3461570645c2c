"""At which sizes and turns is a photo looked at? Passes of one face network over one picture, merged.

The network is best on faces of about 10 to 300 px. A photo is first reduced to one size; where that met small faces or
none, it is seen once more at a larger size; where there still is none, it is seen turned. Boxes and landmarks come
back in pixels of the picture that was given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import cv2
import numpy as np

from app.detect.base import Face, largest_first, overlap, plausible
from data.contract import Array

# (H, W, 3) uint8 RGB -> (N, 15) float32: x, y, width, height, five landmarks (x, y), score; pixels of that picture
Network = Callable[[Array], Array]

MERGE_OVERLAP: Final = 0.45
SMALL_FACE_PX: Final = 40.0
TURNED_PX: Final = 320
_MIN_CANVAS_PX: Final = 64
_QUARTER_TURNS: Final = (
    (1, cv2.ROTATE_90_CLOCKWISE),
    (2, cv2.ROTATE_180),
    (3, cv2.ROTATE_90_COUNTERCLOCKWISE),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which passes are made: long sides in pixels of the first and second pass, and whether turned ones are."""

    first_px: int
    second_px: int
    turned: bool


def find_faces(image: Array, network: Network, plan: Plan) -> list[Face]:
    """Find faces in (H, W, 3) uint8 RGB, largest first."""
    faces = one_pass(image, network, plan.first_px)
    if _is_larger(image, plan.first_px) and _wants_second(image, faces, plan):
        faces = merge(faces + one_pass(image, network, plan.second_px))
    if not faces and plan.turned:
        faces = turned_pass(image, network)
    return largest_first(faces)


def _is_larger(image: Array, long_side_px: int) -> bool:
    return bool(max(image.shape[:2]) > long_side_px)


def _wants_second(image: Array, faces: list[Face], plan: Plan) -> bool:
    """Whether the first pass saw no face, or one so small that smaller ones are likely to be there."""
    scale = plan.first_px / max(image.shape[:2])
    return not faces or min(min(face.box_px[2:]) for face in faces) * scale < SMALL_FACE_PX


def one_pass(image: Array, network: Network, long_side_px: int) -> list[Face]:
    """Run the network on the picture reduced to a long side of at most `long_side_px`; answers in its own pixels."""
    height, width = image.shape[:2]
    scale = min(1.0, long_side_px / max(height, width))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = image if scale == 1.0 else cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    rows = network(_padded(small))
    to_original = np.array([width / size[0], height / size[1]])
    faces = [_face(row, to_original) for row in rows]
    return [face for face in faces if plausible(face, width=width, height=height)]


def _padded(image: Array) -> Array:
    """Give tiny pictures a margin of black at the right and below: the network's coarsest grid has cells of 32 px."""
    height, width = image.shape[:2]
    right, below = max(0, _MIN_CANVAS_PX - width), max(0, _MIN_CANVAS_PX - height)
    if not right and not below:
        return image
    return cv2.copyMakeBorder(image, 0, below, 0, right, cv2.BORDER_CONSTANT, value=(0, 0, 0))


def _face(row: Array, to_original: Array) -> Face:
    x, y, width, height = (float(value) for value in row[:4])
    scale_x, scale_y = (float(value) for value in to_original)
    landmarks = (row[4:14].reshape(5, 2) * to_original).astype(np.float32)
    return Face((x * scale_x, y * scale_y, width * scale_x, height * scale_y), landmarks, float(row[14]))


def merge(faces: list[Face]) -> list[Face]:
    """Keep the better of any two detections of one face: greedy non-maximum suppression over all passes."""
    kept: list[Face] = []
    for face in sorted(faces, key=lambda face: -face.score):
        if all(overlap(face.box_px, other.box_px) < MERGE_OVERLAP for other in kept):
            kept.append(face)
    return kept


def turned_pass(image: Array, network: Network) -> list[Face]:
    """Look at the picture turned by 90, 180 and 270 degrees, small; return the faces of the best turn, unturned."""
    height, width = image.shape[:2]
    scale = min(1.0, TURNED_PX / max(height, width))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    small = image if scale == 1.0 else cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    best: list[Face] = []
    for turns, code in _QUARTER_TURNS:
        faces = one_pass(cv2.rotate(small, code), network, TURNED_PX)
        if sum(face.score for face in faces) > sum(face.score for face in best):
            best = [_unturned(face, turns, width=size[0], height=size[1]) for face in faces]
    to_original = np.array([width / size[0], height / size[1]])
    return [_face(np.array([*f.box_px, *f.landmarks_px.ravel(), f.score]), to_original) for f in best]


def _unturned(face: Face, turns: int, *, width: int, height: int) -> Face:
    """Bring a face back from a picture that was turned clockwise by `turns` quarters; sizes before the turn."""
    x, y, box_width, box_height = face.box_px
    corners = np.array([[x, y], [x + box_width, y + box_height]])
    points = _unturn_points(np.vstack([corners, face.landmarks_px]), turns, width=width, height=height)
    left, top = points[:2].min(axis=0)
    right, bottom = points[:2].max(axis=0)
    box = (float(left), float(top), float(right - left), float(bottom - top))
    return Face(box, points[2:].astype(np.float32), face.score)


def _unturn_points(points: Array, turns: int, *, width: int, height: int) -> Array:
    """Points (N, 2) of a turned picture in pixels of the picture before the turn."""
    x, y = points[:, 0], points[:, 1]
    if turns == 1:
        return np.stack([y, height - x], axis=1)
    if turns == 2:
        return np.stack([width - x, height - y], axis=1)
    return np.stack([width - y, x], axis=1)
