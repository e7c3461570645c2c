"""Torch-free functions shared by serving and training, so that crops and labels are identical in both.

An artifact contains the id of the contract it was trained with, and loading fails if it differs.
"""

import hashlib
import json
from functools import cache

from mien.data.contract.labels import EIGHT_LABELS as EIGHT_LABELS
from mien.data.contract.labels import LABELS as LABELS
from mien.data.contract.labels import Classes as Classes
from mien.data.contract.labels import UnknownLabel as UnknownLabel
from mien.data.contract.labels import labels_of as labels_of
from mien.data.contract.labels import parse_label as parse_label
from mien.data.contract.pixels import CROP_PX as CROP_PX
from mien.data.contract.pixels import LANDMARKS as LANDMARKS
from mien.data.contract.pixels import TEMPLATE_PX as TEMPLATE_PX
from mien.data.contract.pixels import Array as Array
from mien.data.contract.pixels import DecodeError as DecodeError
from mien.data.contract.pixels import DegenerateLandmarks as DegenerateLandmarks
from mien.data.contract.pixels import EmptyImage as EmptyImage
from mien.data.contract.pixels import ImageTooLarge as ImageTooLarge
from mien.data.contract.pixels import UnsupportedImage as UnsupportedImage
from mien.data.contract.pixels import align as align
from mien.data.contract.pixels import decode as decode
from mien.data.contract.pixels import fit as fit
from mien.data.contract.pixels import roll_degrees as roll_degrees
from mien.data.contract.pixels import similarity as similarity


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
