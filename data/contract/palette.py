"""One color per class, shared by annotated images, reports, the review tool and the page."""

import colorsys
from collections.abc import Iterable
from functools import lru_cache
from itertools import count
from typing import Final

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
