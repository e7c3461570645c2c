"""Id of the contract: what a label and a crop are.

An artifact carries the id of the contract it was trained under; loading it under another is refused. The numbers below
`rules` stand for the behavior of a function: raise one whenever the function's output changes for any input
(tests/unit/data/contract/test_contract.py holds golden crops that notice).
"""

import hashlib
import json
from functools import cache

from data.contract.align import CROP_PX, TEMPLATE_PX
from data.contract.labels import LABELS


@cache
def contract_id() -> str:
    """Return the first 12 hexadecimal digits of the SHA-256 of everything that both flows must agree on."""
    facts = {
        "labels": LABELS,
        "crop": {"px": CROP_PX, "channels": "RGB", "dtype": "uint8", "template_px": TEMPLATE_PX},
        "border": "replicate",
        "rules": {"align": 1, "fit": 1, "decode": 1},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
