"""Samples of a detector's training: scenes composed of pictures, with the teacher's faces carried along exactly.

A sample is a crop of a picture, a mosaic of 2x2 or 4x4, a picture with faces pasted in, or a close-up. Each part is one
affine warp of a picture, and the same matrix moves the faces that the teacher found in the source: boxes and landmarks
are never looked for again on the sample. Coordinates are continuous: a pixel i covers i to i + 1.
"""

from dataclasses import dataclass, field
from typing import Final

import cv2
import numpy as np
from numpy.random import Generator

from data.contract import Array
from training.detector.config import SceneConfig
from training.detector.light import relight
from training.detector.pictures import Picture, Pictures
from training.detector.teacher import SCORE, SEEN, mirrored

Rect = tuple[int, int, int, int]  # left, top, right, bottom
MODES: Final = {"crop": 0.22, "mosaic 2": 0.2, "mosaic 4": 0.14, "mosaic 8": 0.05, "paste": 0.31, "close-up": 0.08}
_SURE_SCORE, _SURE_SEEN = 0.75, 0.3  # faces that are learned; what is less sure is neither a face nor background
_COVERED: Final = 0.7  # least long side of a picture, as a share of the region that it is placed in
_WHOLE, _PART = 0.75, 0.3  # visible share of a box from which a face is learned, and below which it is background


@dataclass(slots=True, eq=False)
class Scene:
    """One sample: pixels (S, S, 3) uint8 BGR; faces (N, 14) and boxes (M, 4) that the loss leaves out, float32."""

    pixels: Array
    faces: list[Array] = field(default_factory=list)
    ignored: list[Array] = field(default_factory=list)


class Scenes:
    """Sample `index` of a seed, always the same one."""

    def __init__(self, pictures: Pictures, config: SceneConfig, *, weights: dict[str, float], seed: int) -> None:
        self._pictures, self._config, self._seed = pictures.items, config, seed
        counts = {name: sum(one.folder == name for one in pictures.items) for name in weights}
        chances = np.array([weights[one.folder] / counts[one.folder] for one in pictures.items])
        has_face = np.array([len(sure_faces(one.faces)) > 0 for one in pictures.items])
        self._any, self._with_face = _cumulative(chances), _cumulative(chances * has_face)
        self._without_face = _cumulative(chances * ~has_face)

    def __call__(self, index: int) -> Scene:
        rng = np.random.default_rng([self._seed, index])
        side = self._config.img_size
        scene = Scene(np.full((side, side, 3), rng.integers(0, 256, 3), np.uint8))
        mode = rng.choice(list(MODES), p=list(MODES.values()))
        if mode.startswith("mosaic"):
            self._mosaic(scene, int(mode[-1]), rng)
        elif mode == "paste":
            background = self._any if rng.random() < 0.3 else self._without_face
            self._place(scene, (0, 0, side, side), self._draw(rng, background), rng)
            for _ in range(rng.integers(2, 9)):
                self._paste(scene, rng)
        else:
            least = 0.5 * side if mode == "close-up" else self._config.min_face_px
            picture = self._draw(rng, self._with_face if mode == "close-up" else self._any)
            self._place(scene, (0, 0, side, side), picture, rng, least_px=least, most_px=1.1 * side)
        scene.pixels = relight(scene.pixels, rng)
        return scene

    def _draw(self, rng: Generator, chances: Array) -> Picture:
        return self._pictures[min(int(np.searchsorted(chances, rng.random(), side="right")), len(chances) - 1)]

    def _mosaic(self, scene: Scene, across: int, rng: Generator) -> None:
        """Fill equal cells, most of them with a face."""
        cell = self._config.img_size // across
        for number in range(across * across):
            left, top = cell * (number % across), cell * (number // across)
            picture = self._draw(rng, self._with_face if rng.random() < 0.6 else self._any)
            region = (left, top, left + cell, top + cell)
            self._place(scene, region, picture, rng, least_px=self._config.min_face_px, most_px=0.95 * cell)

    def _place(
        self, scene: Scene, region: Rect, picture: Picture, rng: Generator, *, least_px: float = 9, most_px: float = 200
    ) -> None:
        """Cover a region with a picture, a face of it inside at a size between two bounds, or any part of it."""
        image, faces = _maybe_mirrored(picture, rng)
        center, angle, span = _region_center(region), _angle(rng), region[2] - region[0]
        sure = sure_faces(faces)
        if len(sure):
            box = sure[rng.integers(len(sure)), :4]
            size = max(box[2], box[3])
            least_px = max(least_px, _COVERED * span / max(image.shape[:2]) * size)  # little but border otherwise
            scale = _log_uniform(rng, least_px, max(most_px, 1.3 * least_px)) / size
            slack = span / 2 - 0.35 * scale * box[2:4]
            center = center + rng.uniform(-1, 1, 2) * np.clip(slack, 0, None)
            source = box[:2] + box[2:4] / 2
        else:
            source = rng.random(2) * image.shape[1::-1]
            # enlarged parts too: blurred skin and textures that are no faces
            scale = span / max(image.shape[:2]) * _log_uniform(rng, 0.9, 6.0)
        _warp_into(scene, region, image, faces, similarity(source, center, scale, angle))

    def _paste(self, scene: Scene, rng: Generator) -> None:
        """Paste one face with some of its surroundings where no other is; most of them smaller than 36 px."""
        side = self._config.img_size
        image, faces = _maybe_mirrored(self._draw(rng, self._with_face), rng)
        sure = sure_faces(faces)
        if not len(sure):
            return
        box = sure[rng.integers(len(sure)), :4]
        small = rng.random() < 0.6
        height = _log_uniform(rng, *((9, 36) if small else (30, 0.8 * side)))
        scale = height / max(box[2], box[3])
        radius = 0.5 * height * rng.uniform(1.05, 1.6)
        for _ in range(8):
            center = rng.uniform(0.3 * height, side - 0.3 * height, 2)
            low, high = np.floor(center - radius).astype(int), np.ceil(center + radius).astype(int)
            region = (max(0, low[0]), max(0, low[1]), min(side, high[0]), min(side, high[1]))
            if not _covers_a_face(scene, region):
                matrix = similarity(box[:2] + box[2:4] / 2, center, scale, _angle(rng))
                mask = _ellipse(region, center, radius, rng) if rng.random() < 0.7 else None
                _warp_into(scene, region, image, faces, matrix, mask=mask)
                if rng.random() < 0.2:
                    _occlude(scene, center, height, rng)
                return


def _cumulative(chances: Array) -> Array:
    """Running sum of chances, of all alike where there is none."""
    chances = chances if chances.sum() > 0 else np.ones(len(chances))
    total: Array = np.cumsum(chances) / chances.sum()
    return total


def sure_faces(faces: Array, placed: Array | None = None) -> Array:
    """Those of the teacher's faces (N, 16), or of the same ones elsewhere, that are surely faces."""
    return (faces if placed is None else placed)[_is_sure(faces)]


def _is_sure(faces: Array) -> Array:
    sure: Array = (faces[:, SCORE] >= _SURE_SCORE) & (faces[:, SEEN] >= _SURE_SEEN)
    return sure


def _maybe_mirrored(picture: Picture, rng: Generator) -> tuple[Array, Array]:
    image = picture.read()
    if rng.random() < 0.5:
        return image, picture.faces
    return image[:, ::-1], mirrored(picture.faces, image.shape[1])


def _log_uniform(rng: Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _angle(rng: Generator) -> float:
    """Degrees: mostly near upright, some anywhere to the side, some on their side, a few anywhere."""
    kind = rng.random()
    if kind < 0.66:
        return float(rng.normal(0, 10))
    if kind < 0.82:
        return float(rng.uniform(-60, 60))
    if kind < 0.95:
        return float(rng.choice([-90, 90]) + rng.normal(0, 12))
    return float(rng.uniform(-180, 180))


def _region_center(region: Rect) -> Array:
    return np.array([region[0] + region[2], region[1] + region[3]]) / 2


def similarity(source: Array, target: Array, scale: float, angle_deg: float) -> Array:
    """(2, 3) matrix that turns and scales about `source` and brings it to `target`."""
    angle = np.deg2rad(angle_deg)
    linear = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.column_stack([linear, target - linear @ source])


def moved(faces: Array, matrix: Array) -> Array:
    """Faces (N, 14 and more) under a similarity; a box is that of the ellipse which the source's box holds."""
    linear, shift = matrix[:, :2], matrix[:, 2]
    out = faces[:, :14].astype(np.float64)
    center = (out[:, :2] + out[:, 2:4] / 2) @ linear.T + shift
    size = np.sqrt((out[:, 2:4] ** 2) @ (linear.T**2))
    out[:, :2], out[:, 2:4] = center - size / 2, size
    out[:, 4:14] = (out[:, 4:14].reshape(-1, 5, 2) @ linear.T + shift).reshape(-1, 10)
    return out.astype(np.float32)


def visible_share(boxes: Array, region: Rect) -> Array:
    """Share of the area of boxes (N, 4) that a region holds, (N,)."""
    low = np.maximum(boxes[:, :2], region[:2])
    high = np.minimum(boxes[:, :2] + boxes[:, 2:4], region[2:])
    share: Array = np.clip(high - low, 0, None).prod(axis=1) / np.maximum(boxes[:, 2:4].prod(axis=1), 1e-9)
    return share


def _covers_a_face(scene: Scene, region: Rect) -> bool:
    boxes = np.array([face[:4] for face in (*scene.faces, *scene.ignored)], np.float32).reshape(-1, 4)
    return bool((visible_share(boxes, region) > 0.1).any())


def _warp_into(
    scene: Scene, region: Rect, image: Array, faces: Array, matrix: Array, *, mask: Array | None = None
) -> None:
    """Draw a picture into a region of the scene under `matrix` and add its faces."""
    left, top, right, bottom = region
    scale = float(np.hypot(matrix[0, 0], matrix[1, 0]))
    part = warped(image, _shifted(matrix, -left, -top), (right - left, bottom - top), scale)
    target = scene.pixels[top:bottom, left:right]
    if mask is None:
        target[:] = part
    else:
        target[:] = (target + (part.astype(np.float32) - target) * mask[..., None]).astype(np.uint8)
    _add_faces(scene, region, faces, moved(faces, matrix))


def _add_faces(scene: Scene, region: Rect, faces: Array, placed: Array) -> None:
    for face, is_sure, share in zip(placed, _is_sure(faces), visible_share(placed[:, :4], region), strict=True):
        if is_sure and share >= _WHOLE:
            scene.faces.append(face)
        elif share >= _PART:
            scene.ignored.append(face[:4])


def _shifted(matrix: Array, dx: float, dy: float) -> Array:
    shifted: Array = matrix + np.array([[0, 0, dx], [0, 0, dy]])
    return shifted


def warped(
    image: Array, matrix: Array, size: tuple[int, int], scale: float, *, border: int = cv2.BORDER_REPLICATE
) -> Array:
    """The picture under `matrix`, (height, width, 3); one that shrinks is first reduced by the mean over areas."""
    if scale < 0.7:
        reduced = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
        ratio = np.array([reduced[0] / image.shape[1], reduced[1] / image.shape[0]])
        image = cv2.resize(image, reduced, interpolation=cv2.INTER_AREA)
        matrix = np.column_stack([matrix[:, :2] / ratio, matrix[:, 2]])
    # from continuous coordinates to OpenCV's, where whole numbers are the centers of pixels
    centered = _shifted(matrix, *(matrix[:, :2].sum(axis=1) / 2 - 0.5))
    # never a reflected border: it would show faces without labels
    out: Array = cv2.warpAffine(image, centered, size, flags=cv2.INTER_LINEAR, borderMode=border)
    return out


def _ellipse(region: Rect, center: Array, radius: float, rng: Generator) -> Array:
    """A mask (h, w) float32, 1 inside an ellipse, with a soft edge."""
    left, top, right, bottom = region
    y, x = np.ogrid[top:bottom, left:right]
    across = radius * rng.uniform(0.8, 1.0)
    distance = np.hypot((x + 0.5 - center[0]) / across, (y + 0.5 - center[1]) / radius)
    return np.clip((1 - distance) * rng.uniform(2, 12), 0, 1).astype(np.float32)  # type: ignore[no-any-return]


def _occlude(scene: Scene, center: Array, height: float, rng: Generator) -> None:
    """Hide up to a third of a face behind a rectangle of one color."""
    side = len(scene.pixels)
    size = height * rng.uniform(0.15, 0.45, 2)
    low = np.clip(center + rng.uniform(-0.45, 0.45, 2) * height - size / 2, 0, side - 1).astype(int)
    high = np.clip(low + np.ceil(size), 0, side).astype(int)
    scene.pixels[low[1] : high[1], low[0] : high[0]] = rng.integers(0, 256, 3)
