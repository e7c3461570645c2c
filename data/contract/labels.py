"""Which expressions exist, in which order, and how people spell them.

The order is RAF-DB's (Li et al. 2017): its file ids 1 to 7 are indices 0 to 6 here. Every probability vector in the
project, its artefacts and its outputs has this order.
"""

from typing import Final

LABELS: Final = ("surprise", "fear", "disgust", "happiness", "sadness", "anger", "neutral")
RAF_DB_IDS: Final = dict(enumerate(LABELS, start=1))

# Spellings met in RAF-DB, FERPlus, FER2013, AffectNet, CK+, ExpW and in folders that people name themselves.
_SPELLINGS: Final = {
    "surprise": ("surprised", "surprise", "surprises", "sur", "su", "astonished"),
    "fear": ("fear", "fearful", "afraid", "scared", "fea", "fe"),
    "disgust": ("disgust", "disgusted", "dis", "di"),
    "happiness": ("happiness", "happy", "joy", "joyful", "hap", "ha", "smile"),
    "sadness": ("sadness", "sad", "unhappy", "sa"),
    "anger": ("anger", "angry", "ang", "an", "mad"),
    "neutral": ("neutral", "neutrality", "calm", "neu", "ne", "none"),
}
_BY_SPELLING: Final = {spelling: label for label, spellings in _SPELLINGS.items() for spelling in spellings}


class UnknownLabel(ValueError):
    """A class name or number that is none of the seven expressions."""


def label_index(label: str) -> int:
    """Return the index of one of `LABELS`, 0 to 6. Raises: UnknownLabel."""
    try:
        return LABELS.index(label)
    except ValueError:
        raise UnknownLabel(f"label {label!r}: expected one of {', '.join(LABELS)}") from None


def parse_label(text: str) -> str:
    """Read an expression as people write it: any case, a RAF-DB number, a folder name such as `4_happy`.

    Raises: UnknownLabel, naming the text and the seven labels.
    """
    words = text.strip().lower().replace("-", "_").replace(" ", "_").split("_")
    names = {_BY_SPELLING[word] for word in words if word in _BY_SPELLING}
    if len(names) == 1:
        return names.pop()
    if not names and len(words) == 1 and words[0].isdecimal() and int(words[0]) in RAF_DB_IDS:
        return RAF_DB_IDS[int(words[0])]
    raise UnknownLabel(f"class {text!r}: expected one of {', '.join(LABELS)}, or a RAF-DB number from 1 to 7")
