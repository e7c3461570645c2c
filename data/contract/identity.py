"""Id of the contract that defines labels and crops.

An artifact contains the id of the contract it was trained with, and loading fails if it differs. The numbers in `rules`
are versions of functions: increment one whenever the function's output changes for any input (the golden crops of
tests/data/test_contract.py detect this).
"""

import hashlib
import json
from functools import cache

from mien.data.contract.align import CROP_PX, TEMPLATE_PX
from mien.data.contract.labels import LABELS


@cache
def contract_id() -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of everything that serving and training must agree on."""
    facts = {
        "labels": LABELS,
        "crop": {"px": CROP_PX, "channels": "RGB", "dtype": "uint8", "template_px": TEMPLATE_PX},
        "border": "replicate",
        "rules": {"align": 1, "fit": 1, "decode": 1},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
