"""Labels: the expressions, their order, and their usual spellings.

The order is RAF-DB's (Li et al. 2017): its file ids 1 to 7 are indices 0 to 6 here. Every probability vector in the
project, its artifacts and its outputs uses this order.
"""

import re
from collections.abc import Iterable
from typing import Final

from mien.data.errors import MienError

LABELS: Final = ("surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral")
EIGHT_LABELS: Final = (*LABELS, "contempt")

# Spellings found in RAF-DB, FERPlus, FER2013, AffectNet, CK+ and ExpW, and common names of class folders.
_SPELLINGS: Final = {
    "surprise": ("surprised", "surprise", "surprises", "sur", "su", "astonished"),
    "fear": ("fear", "fearful", "afraid", "scared", "fea", "fe"),
    "disgust": ("disgust", "disgusted", "dis", "di"),
    "happiness": ("happiness", "happy", "joy", "joyful", "hap", "ha", "smile"),
    "sadness": ("sadness", "sad", "unhappy", "sa"),
    "anger": ("anger", "angry", "ang", "an", "mad"),
    "neutral": ("neutral", "neutrality", "calm", "neu", "ne"),
    "contempt": ("contempt", "contemptuous", "con"),
}
# Words in folder names that do not change the class.
_PADDING: Final = frozenset(("class", "emotion", "emotions", "expression", "expressions", "face", "faces", "images"))
_BY_SPELLING: Final = {spelling: label for label, spellings in _SPELLINGS.items() for spelling in spellings}


class UnknownLabel(MienError, ValueError):
    """A class name or number that is not one of the expressions."""


def by_label(probabilities: Iterable[float]) -> dict[str, float]:
    """Name the seven or eight probabilities of a face."""
    return {label: float(value) for label, value in zip(EIGHT_LABELS, probabilities, strict=False)}


def parse_label(text: str, labels: tuple[str, ...] = LABELS) -> str:
    """Parse a common spelling of an expression: any case, a folder name like `4_happy` or `Sad faces`.

    Every word must be known, because neither `not_happy` nor RAF-DB's `happily_surprised` is an expression. A number
    is not either: its meaning differs between data sets.

    With `EIGHT_LABELS`, contempt is an expression, too. Raises: UnknownLabel, naming the text and the labels.
    """
    words = [word for word in re.split(r"[\W_]+", text.strip().lower()) if word]
    names = {_BY_SPELLING.get(word, "") for word in words if not word.isdecimal() and word not in _PADDING}
    if len(names) == 1 and names <= set(labels):
        return names.pop()
    raise UnknownLabel(f"class {text!r}: expected one of {', '.join(labels)}")
