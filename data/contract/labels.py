"""Labels: the expressions, their order, their usual spellings and their colors; and names of other classes.

The order of the expressions is RAF-DB's (Li et al. 2017): its file ids 1 to 7 are indices 0 to 6 here. A model may have
other classes: its manifest lists them, in the order of its probabilities.
"""

import colorsys
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import count
from typing import Final, Literal

from mien.data.errors import MienError

LABELS: Final = ("surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral")
EIGHT_LABELS: Final = (*LABELS, "contempt")
Classes = Literal[7, 8] | Sequence[str]  # 7: LABELS, 8: EIGHT_LABELS, or names
# Words that outputs, the review and the page use for other things
_RESERVED: Final = ("uncertain", "no_face", "not_a_face", "undone", "error", "skipped")

# Spellings found in RAF-DB, FERPlus, FER2013, AffectNet and CK+, and common names of class folders.
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

# RGB; distinguishable with the common color-vision deficiencies (after Okabe and Ito 2008).
COLORS: Final = {
    "surprise": (240, 228, 66),
    "fear": (204, 121, 167),
    "disgust": (0, 158, 115),
    "happiness": (230, 159, 0),
    "sadness": (86, 180, 233),
    "anger": (213, 94, 0),
    "neutral": (200, 200, 200),
    "contempt": (0, 114, 178),
}
_GOLDEN_RATIO: Final = 0.618  # spreads any number of hues

Color = tuple[int, int, int]


class UnknownLabel(MienError, ValueError):
    """A class name or number that is not one of the expressions."""


def labels_of(classes: Classes) -> tuple[str, ...]:
    """The ordered labels of an option `classes`. Raises: UnknownLabel, for names that cannot be labels."""
    if not isinstance(classes, Sequence):
        return LABELS if classes == 7 else EIGHT_LABELS
    for name in classes:
        if not (name.isidentifier() and name == name.lower() and name not in _RESERVED):
            raise UnknownLabel(f"class {name!r}: expected lower-case letters, digits and _, and none of {_RESERVED}")
    if len(classes) < 2 or len(set(classes)) < len(classes):
        raise UnknownLabel(f"classes {', '.join(classes)}: expected at least two different names")
    return tuple(classes)


def parse_label(text: str, labels: tuple[str, ...] = LABELS) -> str:
    """Parse one of the labels, or a common spelling of an expression: any case, `4_happy` or `Sad faces`.

    Every word must be known, because neither `not_happy` nor RAF-DB's `happily_surprised` is an expression. A number
    is not either: its meaning differs between data sets.

    With `EIGHT_LABELS`, contempt is an expression, too. Raises: UnknownLabel, naming the text and the labels.
    """
    words = [word for word in re.split(r"[\W_]+", text.strip().lower()) if word]
    if (name := "_".join(words)) in labels:
        return name
    names = {_BY_SPELLING.get(word, "") for word in words if not word.isdecimal() and word not in _PADDING}
    if len(names) == 1 and names <= set(labels):
        return names.pop()
    raise UnknownLabel(f"class {text!r}: expected one of {', '.join(labels)}")


def palette(labels: Iterable[str]) -> dict[str, Color]:
    """Color of each label of a model: of an expression its own, of other classes those that are left, in order."""
    return dict(_palette(tuple(labels)))


@lru_cache
def _palette(labels: tuple[str, ...]) -> dict[str, Color]:
    left = (color for label, color in COLORS.items() if label not in labels)
    more = (colorsys.hls_to_rgb(number * _GOLDEN_RATIO % 1, 0.65, 0.6) for number in count())
    spare = (*left, *(tuple(round(255 * part) for part in next(more)) for _ in labels))
    others = iter(spare)
    return {label: COLORS.get(label) or next(others) for label in labels}  # type: ignore[misc]


def hex_color(label: str, labels: Iterable[str]) -> str:
    """Return the color of one of a model's labels in CSS notation: `#e69f00`."""
    return "#{:02x}{:02x}{:02x}".format(*palette(labels)[label])
