"""Torch-free functions shared by serving and training, so that crops and labels are identical in both.

An artifact contains the id of the contract it was trained with, and loading fails if it differs.
"""

import hashlib
import json
from functools import cache

from mien.data.contract.labels import EIGHT_LABELS, LABELS, Classes, UnknownLabel, labels_of, parse_label
from mien.data.contract.pixels import (
    CROP_PX,
    LANDMARKS,
    TEMPLATE_PX,
    Array,
    DecodeError,
    DegenerateLandmarks,
    EmptyImage,
    ImageTooLarge,
    UnsupportedImage,
    align,
    decode,
    fit,
    roll_degrees,
    similarity,
)

__all__ = [
    "CROP_PX",
    "EIGHT_LABELS",
    "LABELS",
    "LANDMARKS",
    "TEMPLATE_PX",
    "Array",
    "Classes",
    "DecodeError",
    "DegenerateLandmarks",
    "EmptyImage",
    "ImageTooLarge",
    "UnknownLabel",
    "UnsupportedImage",
    "align",
    "contract_id",
    "decode",
    "fit",
    "labels_of",
    "parse_label",
    "roll_degrees",
    "similarity",
]


@cache
def contract_id() -> str:
    """The first 12 hexadecimal digits of the SHA-256 of everything that serving and training must agree on.

    The numbers in `rules` are versions of functions: increment one whenever the function's output changes for any input
    (the golden crops of tests/data/test_contract.py detect this).
    """
    agreed = {
        "labels": LABELS,
        "crop": {"px": CROP_PX, "channels": "RGB", "dtype": "uint8", "template_px": TEMPLATE_PX},
        "border": "replicate",
        "rules": {"align": 1, "fit": 1, "decode": 1},
    }
    return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:12]
