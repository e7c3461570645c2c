"""What does a labelled photo look like? Boxes, labels and confidences drawn on a copy, legible at any size.

python -m app label samples/photos --out out
"""

from typing import Final

import cv2

from app.pipeline import Analysis, LabelledFace
from data.contract import Array

# One colour per label, RGB, distinguishable with the common colour-vision deficiencies (after Okabe and Ito 2008).
COLOURS: Final = {
    "surprise": (240, 228, 66),
    "fear": (204, 121, 167),
    "disgust": (0, 158, 115),
    "happiness": (230, 159, 0),
    "sadness": (86, 180, 233),
    "anger": (213, 94, 0),
    "neutral": (200, 200, 200),
}
_FONT: Final = cv2.FONT_HERSHEY_SIMPLEX
_FONT_PX: Final = 22.0  # height of a capital at scale 1
_DARK: Final = (20, 20, 20)


def annotate(image: Array, analysis: Analysis) -> Array:
    """Draw every face of `analysis` on a copy of the picture it was made from.

    Args:
        image: (H, W, 3) uint8, RGB; a reduced copy of the analysed picture is right too.
    Returns: (H, W, 3) uint8, RGB.
    """
    canvas = image.copy()
    scale = image.shape[1] / analysis.width
    for face in reversed(analysis.faces):  # the largest last, so that its label is on top
        _draw_face(canvas, face, scale)
    return canvas


def reduced(image: Array, long_side_px: int) -> Array:
    """The picture at a long side of at most `long_side_px`; the same object where it is no larger."""
    height, width = image.shape[:2]
    scale = long_side_px / max(height, width)
    if scale >= 1:
        return image
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


def _draw_face(canvas: Array, face: LabelledFace, scale: float) -> None:
    x, y, width, height = (value * scale for value in face.face.box_px)
    left, top, right, bottom = round(x), round(y), round(x + width), round(y + height)
    stroke = max(1, round(max(canvas.shape[:2]) / 400))
    colour = COLOURS[face.label]
    cv2.rectangle(canvas, (left, top), (right, bottom), _DARK, stroke + 2, cv2.LINE_AA)
    cv2.rectangle(canvas, (left, top), (right, bottom), colour, stroke, cv2.LINE_AA)
    _draw_label(canvas, _text(face), (left, top, right, bottom), colour)


def percent(probability: float) -> str:
    """A probability in whole per cent, for people; never a certainty: 0.998 is `>99%`."""
    return ">99%" if probability >= 0.995 else f"{probability:.0%}"


def _text(face: LabelledFace) -> str:
    return f"{face.label}{'?' if face.uncertain else ''} {percent(face.confidence)}"


def _draw_label(canvas: Array, text: str, box: tuple[int, int, int, int], colour: tuple[int, int, int]) -> None:
    """A filled tag above the box, below it where there is no room above; its size follows face and picture."""
    left, top, right, bottom = box
    picture_height, picture_width = canvas.shape[:2]
    capital_px = min(max((right - left) / 9, picture_width / 110, 9.0), picture_width / 18)
    size = capital_px / _FONT_PX
    stroke = max(1, round(capital_px / 9))
    (text_width, text_height), baseline = cv2.getTextSize(text, _FONT, size, stroke)
    pad = max(2, round(capital_px / 3))
    tag_width, tag_height = text_width + 2 * pad, text_height + baseline + pad
    x = min(max(left, 0), max(0, picture_width - tag_width))
    y = top - tag_height if top >= tag_height else min(bottom, max(0, picture_height - tag_height))
    cv2.rectangle(canvas, (x, y), (x + tag_width, y + tag_height), colour, -1)
    cv2.putText(canvas, text, (x + pad, y + tag_height - baseline), _FONT, size, _DARK, stroke, cv2.LINE_AA)
