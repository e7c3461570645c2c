"""Training samples of a detector, composed of parts of labeled images.

A sample is a crop, a mosaic of 2x2, 4x4 or 8x8, an image with pasted faces, or a close-up. Each part is an affine warp
of an image, and the same matrix transforms its labels. Some parts show what an earlier detector took for a face.
Coordinates are continuous: pixel i covers i to i + 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import cv2
import numpy as np
from numpy.random import Generator

from mien.data.contract import Array
from mien.training.detector.config import SceneConfig
from mien.training.detector.images import LabeledImage, LabeledImages
from mien.training.detector.teacher import SCORE, VIEW_SHARE, mirrored

Rect = tuple[int, int, int, int]  # left, top, right, bottom
MODES: Final = {"crop": 0.2, "mosaic 2": 0.19, "mosaic 4": 0.13, "mosaic 8": 0.05, "paste": 0.3, "close-up": 0.13}
_SURE_SCORE, _SURE_SHARE = 0.75, 0.3  # less reliable faces are ignored by the loss
_COVERED: Final = 0.7  # minimum long side of an image, as a share of its region
_WHOLE, _PART = 0.75, 0.3  # visible share of a box: learned from the first, background below the second


@dataclass(slots=True, eq=False)
class Scene:
    """One sample: pixels (S, S, 3) uint8 BGR; faces (N, 14) and ignored boxes (M, 4), float32."""

    pixels: Array
    faces: list[Array] = field(default_factory=list)
    ignored: list[Array] = field(default_factory=list)


class Scenes:
    """Samples by index, reproducible for a seed."""

    def __init__(
        self,
        images: LabeledImages,
        config: SceneConfig,
        *,
        weights: dict[str, float],
        seed: int,
        hard: Sequence[tuple[LabeledImage, Array]] = (),
    ) -> None:
        """Args: hard: images and a false positive (1, 15) in each, for `config.hard_share` of the parts."""
        self._images, self._config, self._seed, self._hard = images.items, config, seed, hard
        counts = {name: sum(image.folder == name for image in images.items) for name in weights}
        chances = np.array([weights[image.folder] / counts[image.folder] for image in images.items])
        has_face = np.array([is_sure(image.faces).any() for image in images.items])
        self._any, self._with_face = _cumulative(chances), _cumulative(chances * has_face)
        self._without_face = _cumulative(chances * ~has_face)

    def __call__(self, index: int) -> Scene:
        rng = np.random.default_rng([self._seed, index])
        side = self._config.img_size
        scene = Scene(np.full((side, side, 3), rng.integers(0, 256, 3), np.uint8))
        mode = str(rng.choice(list(MODES), p=list(MODES.values())))
        if mode.startswith("mosaic"):
            self._mosaic(scene, int(mode[-1]), rng)
        elif mode == "paste":
            background = self._any if rng.random() < 0.3 else self._without_face
            self._place(scene, (0, 0, side, side), self._draw(rng, background), rng)
            for _ in range(rng.integers(2, 9)):
                self._paste(scene, rng)
        else:
            close = mode == "close-up"
            item = self._draw(rng, self._with_face if close else self._any)
            # the largest show a part of a face, which is background
            minimum, maximum = (0.5 * side, 3.0 * side) if close else (self._config.min_face_px, 1.1 * side)
            self._place(scene, (0, 0, side, side), item, rng, min_px=minimum, max_px=maximum)
        scene.pixels = augment(scene.pixels, rng)
        return scene

    def _draw(self, rng: Generator, chances: Array) -> LabeledImage:
        return self._images[min(int(np.searchsorted(chances, rng.random(), side="right")), len(chances) - 1)]

    def _mosaic(self, scene: Scene, across: int, rng: Generator) -> None:
        """Fill a grid of cells, most of them with a face."""
        cell = self._config.img_size // across
        for number in range(across * across):
            left, top = cell * (number % across), cell * (number // across)
            item = self._draw(rng, self._with_face if rng.random() < 0.6 else self._any)
            region = (left, top, left + cell, top + cell)
            self._place(scene, region, item, rng, min_px=self._config.min_face_px, max_px=0.95 * cell)

    def _place(
        self, scene: Scene, region: Rect, item: LabeledImage, rng: Generator, *, min_px: float = 9, max_px: float = 200
    ) -> None:
        """Fill a region with a part of an image, scaled so that one of its faces has `min_px` to `max_px`."""
        centered = item.faces[is_sure(item.faces)]
        if self._hard and rng.random() < self._config.hard_share:
            item, centered = self._hard[int(rng.integers(len(self._hard)))]
        image, faces, centered = _maybe_mirrored(rng, item.read(), item.faces, centered)
        center = np.array([region[0] + region[2], region[1] + region[3]]) / 2
        angle, span = _angle(rng), region[2] - region[0]
        if len(centered):
            box = centered[rng.integers(len(centered)), :4]
            size = max(box[2], box[3])
            min_px = max(min_px, _COVERED * span / max(image.shape[:2]) * size)  # otherwise, mostly border
            scale = _log_uniform(rng, min_px, max(max_px, 1.3 * min_px)) / size
            slack = span / 2 - 0.35 * scale * box[2:4]
            center = center + rng.uniform(-1, 1, 2) * np.abs(slack)
            source = box[:2] + box[2:4] / 2
        else:
            source = rng.random(2) * image.shape[1::-1]
            # also enlarged: blurred skin and textures without faces
            scale = span / max(image.shape[:2]) * _log_uniform(rng, 0.9, 6.0)
        _warp_into(scene, region, image, faces, similarity(source, center, scale, angle))

    def _paste(self, scene: Scene, rng: Generator) -> None:
        """Paste a face with some background where no other face is; most are smaller than 36 px."""
        side = self._config.img_size
        item = self._draw(rng, self._with_face)
        image, faces = _maybe_mirrored(rng, item.read(), item.faces)
        sure = faces[is_sure(faces)]
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
            boxes = np.array([face[:4] for face in (*scene.faces, *scene.ignored)], np.float32).reshape(-1, 4)
            if not (visible_share(boxes, region) > 0.1).any():
                matrix = similarity(box[:2] + box[2:4] / 2, center, scale, _angle(rng))
                mask = _ellipse(region, center, radius, rng) if rng.random() < 0.7 else None
                _warp_into(scene, region, image, faces, matrix, mask=mask)
                if rng.random() < 0.2:
                    _occlude(scene, center, height, rng)
                return


def _cumulative(chances: Array) -> Array:
    """Cumulative distribution; uniform if all chances are 0."""
    chances = chances if chances.sum() > 0 else np.ones(len(chances))
    total: Array = np.cumsum(chances) / chances.sum()
    return total


def is_sure(faces: Array) -> Array:
    """Which of (N, 16) labels are reliable, (N,) bool."""
    sure: Array = (faces[:, SCORE] >= _SURE_SCORE) & (faces[:, VIEW_SHARE] >= _SURE_SHARE)
    return sure


def _maybe_mirrored(rng: Generator, image: Array, *faces: Array) -> tuple[Array, ...]:
    """An image and its faces, mirrored in half of the cases."""
    if rng.random() < 0.5:
        return image, *faces
    return image[:, ::-1], *(mirrored(rows, image.shape[1]) for rows in faces)


def _log_uniform(rng: Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _angle(rng: Generator) -> float:
    """Random rotation in degrees: mostly near upright, some up to 60 or near 90, a few any."""
    kind = rng.random()
    if kind < 0.66:
        return float(rng.normal(0, 10))
    if kind < 0.82:
        return float(rng.uniform(-60, 60))
    if kind < 0.95:
        return float(rng.choice([-90, 90]) + rng.normal(0, 12))
    return float(rng.uniform(-180, 180))


def similarity(source: Array, target: Array, scale: float, angle_deg: float) -> Array:
    """Matrix (2, 3) that rotates and scales around `source` and maps it to `target`."""
    angle = np.deg2rad(angle_deg)
    linear = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return np.column_stack([linear, target - linear @ source])


def transform_faces(faces: Array, matrix: Array) -> Array:
    """Transform faces (N, 14 or more) by a similarity; a new box bounds the ellipse inside the old one."""
    linear, shift = matrix[:, :2], matrix[:, 2]
    out = faces[:, :14].astype(np.float64)
    center = (out[:, :2] + out[:, 2:4] / 2) @ linear.T + shift
    size = np.sqrt((out[:, 2:4] ** 2) @ (linear.T**2))
    out[:, :2], out[:, 2:4] = center - size / 2, size
    out[:, 4:14] = (out[:, 4:14].reshape(-1, 5, 2) @ linear.T + shift).reshape(-1, 10)
    return out.astype(np.float32)


def visible_share(boxes: Array, region: Rect) -> Array:
    """Share of the area of boxes (N, 4) inside a region, (N,)."""
    low = np.maximum(boxes[:, :2], region[:2])
    high = np.minimum(boxes[:, :2] + boxes[:, 2:4], region[2:])
    share: Array = np.clip(high - low, 0, None).prod(axis=1) / np.maximum(boxes[:, 2:4].prod(axis=1), 1e-9)
    return share


def _warp_into(
    scene: Scene, region: Rect, image: Array, faces: Array, matrix: Array, *, mask: Array | None = None
) -> None:
    """Warp an image into a region of the scene and add its faces."""
    left, top, right, bottom = region
    scale = float(np.hypot(matrix[0, 0], matrix[1, 0]))
    part = warp(image, _shifted(matrix, -left, -top), (right - left, bottom - top), scale)
    target = scene.pixels[top:bottom, left:right]
    if mask is None:
        target[:] = part
    else:
        target[:] = (target + (part.astype(np.float32) - target) * mask[..., None]).astype(np.uint8)
    placed = transform_faces(faces, matrix)
    for face, sure, share in zip(placed, is_sure(faces), visible_share(placed[:, :4], region), strict=True):
        if sure and share >= _WHOLE:
            scene.faces.append(face)
        elif share >= _PART:
            scene.ignored.append(face[:4])


def _shifted(matrix: Array, dx: float, dy: float) -> Array:
    shifted: Array = matrix + np.array([[0, 0, dx], [0, 0, dy]])
    return shifted


def warp(
    image: Array, matrix: Array, size: tuple[int, int], scale: float, *, border: int = cv2.BORDER_REPLICATE
) -> Array:
    """Warp an image to (height, width, 3), with area interpolation if it shrinks."""
    if scale < 0.7:
        reduced = (max(1, round(image.shape[1] * scale)), max(1, round(image.shape[0] * scale)))
        ratio = np.array([reduced[0] / image.shape[1], reduced[1] / image.shape[0]])
        image = cv2.resize(image, reduced, interpolation=cv2.INTER_AREA)
        matrix = np.column_stack([matrix[:, :2] / ratio, matrix[:, 2]])
    # OpenCV's coordinates have pixel centers at whole numbers
    centered = _shifted(matrix, *(matrix[:, :2].sum(axis=1) / 2 - 0.5))
    # a reflected border would contain faces without labels
    out: Array = cv2.warpAffine(image, centered, size, flags=cv2.INTER_LINEAR, borderMode=border)
    return out


def _ellipse(region: Rect, center: Array, radius: float, rng: Generator) -> Array:
    """Elliptic mask (h, w) float32, 0 to 1, with a soft edge."""
    left, top, right, bottom = region
    y, x = np.ogrid[top:bottom, left:right]
    across = radius * rng.uniform(0.8, 1.0)
    distance = np.hypot((x + 0.5 - center[0]) / across, (y + 0.5 - center[1]) / radius)
    return np.clip((1 - distance) * rng.uniform(2, 12), 0, 1).astype(np.float32)  # type: ignore[no-any-return]


def _occlude(scene: Scene, center: Array, height: float, rng: Generator) -> None:
    """Cover up to a third of a face with a rectangle of one color."""
    side = len(scene.pixels)
    size = height * rng.uniform(0.15, 0.45, 2)
    low = np.clip(center + rng.uniform(-0.45, 0.45, 2) * height - size / 2, 0, side - 1).astype(int)
    high = np.clip(low + np.ceil(size), 0, side).astype(int)
    scene.pixels[low[1] : high[1], low[0] : high[0]] = rng.integers(0, 256, 3)


def augment(image: Array, rng: Generator) -> Array:
    """Apply random exposure, tint, grayscale, blur, noise and JPEG compression to (H, W, 3) uint8 BGR."""
    if rng.random() < 0.2:
        image = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    if rng.random() < 0.7:
        image = cv2.LUT(image, _curves(rng))
    if rng.random() < 0.15:
        image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.4, 1.8))
    if rng.random() < 0.12:
        noise = rng.normal(0, rng.uniform(2, 16), image.shape)
        image = np.clip(image + noise, 0, 255).astype(np.uint8)
    if rng.random() < 0.15:
        packed = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(25, 90))])[1]
        image = np.asarray(cv2.imdecode(packed, cv2.IMREAD_COLOR))
    return image


def _curves(rng: Generator) -> Array:
    """Lookup table (1, 256, 3) uint8 of exposure, contrast and gamma, which differ slightly by channel."""
    levels = np.linspace(0, 1, 256, dtype=np.float32)[:, None]
    gamma = np.exp(rng.normal(0, 0.3)) * np.exp(rng.normal(0, 0.06, 3))
    gain = np.exp(rng.normal(-0.1, 0.3)) * np.exp(rng.normal(0, 0.06, 3))
    values = np.clip(levels**gamma * gain + rng.normal(0, 0.05), 0, 1)
    return (255 * values).astype(np.uint8)[None]  # type: ignore[no-any-return]
