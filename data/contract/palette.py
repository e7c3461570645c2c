"""One color per expression, shared by annotated images, reports, the review tool and the page."""

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


def hex_color(label: str) -> str:
    """Return the color of an expression in CSS notation: `#e69f00`."""
    return "#{:02x}{:02x}{:02x}".format(*COLORS[label])
