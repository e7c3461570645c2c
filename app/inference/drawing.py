"""Annotated copies of images: boxes, labels and confidences, legible at any size; attention maps.

Flow: boxes of all faces -> a free position for each tag -> lines and Pillow text, largest face last.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Final

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mien.app.inference.records import Photo
from mien.data.contract import Array
from mien.data.contract.labels import Color, palette

Point = tuple[int, int]  # x, y, pixels
Rectangle = tuple[int, int, int, int]  # left, top, right, bottom, pixels
_DARK: Final = (20, 20, 20)
_OVERLAY_PX: Final = 224
_ALPHA: Final = 0.5
_MIN_SPREAD: Final = 1e-6  # A smaller one is rounding error.
_font: Final = lru_cache(maxsize=64)(ImageFont.load_default)


def annotate(image: Array, photo: Photo) -> Array:
    """Draw every face of `photo` on a copy of its image.

    All labels have one size. In a crowd it is smaller, at most by half; a label without a free position is left out,
    and the color of the box remains.

    Args:
        image: (H, W, 3) uint8, RGB; a reduced copy of the analyzed image works too.
    Returns: (H, W, 3) uint8, RGB.
    """
    canvas = image.copy()
    scale = image.shape[1] / photo.width
    area = (image.shape[1], image.shape[0])
    boxes, texts, colors = list[Rectangle](), list[str](), list[Color]()
    for face in photo.faces:
        x, y, width, height = (value * scale for value in face.box)
        boxes.append((round(x), round(y), round(x + width), round(y + height)))
        texts.append(f"{face.label}{'?' if face.uncertain else ''} {percent(face.confidence)}")
        colors.append(palette(face.probabilities)[face.label])
    for face, box, color in reversed(list(zip(photo.faces, boxes, colors, strict=True))):  # The largest is on top.
        # Lines are as wide as the image demands, but thin around a small face.
        stroke = max(1, round(min(max(area) / 400, (box[2] - box[0]) / 20)))
        _draw_box(canvas, box, color, dashed=face.uncertain, stroke=stroke)
    tags, positions = list[Array](), list[Rectangle | None]()
    for font_px in _font_sizes(area):
        tags = [_tag(text, color, font_px) for text, color in zip(texts, colors, strict=True)]
        positions = place_tags(boxes, [(tag.shape[1], tag.shape[0]) for tag in tags], area)
        if None not in positions:
            break
    for tag, position in zip(tags, positions, strict=True):
        if position is not None:
            left, top, right, bottom = position
            visible = canvas[top:bottom, left:right]
            visible[:] = tag[: visible.shape[0], : visible.shape[1]]
    return canvas


def reduced(image: Array, long_side_px: int) -> Array:
    """Shrink an image to a long side of at most `long_side_px`; a smaller image is returned as is."""
    height, width = image.shape[:2]
    scale = long_side_px / max(height, width)
    if scale >= 1:
        return image
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def place_tags(
    boxes: Sequence[Rectangle], sizes: Sequence[tuple[int, int]], area: tuple[int, int]
) -> list[Rectangle | None]:
    """Place each tag where it hides no other face, no other tag, and not the lower half of its own face.

    Args:
        boxes: faces, the most important first.
        sizes: width and height of each tag.
        area: width and height of the image.
    Returns: the positions; None without a free one.
    """
    positions: list[Rectangle | None] = []
    occupied = np.array(boxes, np.int64).reshape(-1, 4)  # Tags are appended to the faces.
    for index, (box, size) in enumerate(zip(boxes, sizes, strict=True)):
        corners = np.clip(_corners(box, size), 0, np.maximum(0, np.subtract(area, size)))
        tags = np.hstack([corners, corners + size])  # (N, 4)
        left, top, right, bottom = box
        others = occupied.copy()
        others[index] = (left, (top + bottom) // 2, right, bottom)
        starts = np.maximum(tags[:, None, :2], others[None, :, :2])
        ends = np.minimum(tags[:, None, 2:], others[None, :, 2:])
        hides = (starts < ends).all(axis=2).any(axis=1)
        if hides.all():
            positions.append(None)
        else:
            tag = tags[int(hides.argmin())]
            positions.append(tuple(tag.tolist()))
            occupied = np.vstack([occupied, tag])
    return positions


def _corners(box: Rectangle, size: tuple[int, int]) -> list[Point]:
    """Positions, nearest first: above, below, beside, one row farther away, on the forehead; never over the mouth."""
    left, top, right, bottom = box
    width, height = size
    columns = (left, (left + right - width) // 2, right - width)
    corners = [(x, y) for y in (top - height, bottom) for x in columns]
    corners += [(x, y) for y in (top, bottom - height) for x in (right, left - width)]
    corners += [(x, y) for y in (top - 2 * height, bottom + height) for x in columns]
    return [*corners, (left, top)]


def percent(probability: float) -> str:
    """Format a probability as a whole percentage, but never as certainty: 0.998 becomes `>99%`."""
    return ">99%" if probability >= 0.995 else f"{probability:.0%}"


def _font_sizes(area: tuple[int, int]) -> list[int]:
    """Font sizes in proportion to the image, the largest first, so that a tag is legible but hides little."""
    largest = min(max(max(area) / 64, 14), max(area[0] / 12, 8))
    return sorted({max(8, round(largest * share)) for share in (1, 0.85, 0.7, 0.6, 0.5)}, reverse=True)


@lru_cache(maxsize=1024)
def _tag(text: str, color: Color, font_px: int) -> Array:
    """Text on the color of its label, (height, width, 3) uint8 RGB."""
    font = _font(font_px)
    pad = max(2, round(font_px / 3))
    size = (round(font.getlength(text)) + 2 * pad, round(font_px * 1.4))
    tag = Image.new("RGB", size, color)
    ImageDraw.Draw(tag).text((pad, size[1] / 2), text, fill=_DARK, font=font, anchor="lm")
    return np.asarray(tag)


def _draw_box(canvas: Array, box: Rectangle, color: Color, *, dashed: bool, stroke: int) -> None:
    """Draw a rectangle with a dark outline, visible on any image; dashed if the label is uncertain."""
    left, top, right, bottom = box
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    for fill, width in ((_DARK, stroke + 2 * math.ceil(stroke / 2)), (color, stroke)):
        for start, end in pairwise(corners):
            for piece in _dashes(start, end, 6 * stroke) if dashed else [(start, end)]:
                cv2.line(canvas, *piece, fill, width)


def _dashes(start: Point, end: Point, length_px: int) -> list[tuple[Point, Point]]:
    """Every other segment of a line; both ends are drawn, so that corners are visible."""
    count = max(1, round(math.dist(start, end) / length_px / 2)) * 2 + 1
    steps = np.linspace(start, end, count + 1).round().astype(int).tolist()
    return [(tuple(steps[index]), tuple(steps[index + 1])) for index in range(0, count, 2)]


def overlay(crop: Array, relevance: Array) -> Array:
    """Blend the map with the crop: dark for low relevance, bright for high.

    The map is attention rollout (Abnar and Zuidema 2020), computed by the exported graph itself. It shows where
    information could come from; it does not prove why a label was predicted.

    Returns: (224, 224, 3) uint8, RGB.
    """
    size = (_OVERLAY_PX, _OVERLAY_PX)
    photo = cv2.resize(crop, size, interpolation=cv2.INTER_CUBIC)
    enlarged = cv2.resize(relevance.astype(np.float32), size, interpolation=cv2.INTER_CUBIC)
    spread = float(np.ptp(enlarged))
    levels = np.clip((enlarged - enlarged.min()) / spread, 0, 1) if spread > _MIN_SPREAD else np.zeros_like(enlarged)
    heat = cv2.applyColorMap((levels * 255).astype(np.uint8), cv2.COLORMAP_INFERNO)[:, :, ::-1]
    blended: Array = cv2.addWeighted(photo, 1 - _ALPHA, np.ascontiguousarray(heat), _ALPHA, 0)
    return blended
