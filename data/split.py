"""Held-out splits by hash: the same images on every machine, whatever the order of the files.

Names are ranked by their SHA-256 and the first ones are taken, class by class. A name's place does not depend on a
random generator, its version or a seed.
"""

import hashlib
from collections.abc import Iterable


def hold_out(names: Iterable[str], share: float) -> frozenset[str]:
    """Pick `share` of the names (rounded down): those whose SHA-256 is smallest. Call it once per class."""
    ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    return frozenset(ranked[: int(len(ranked) * share + 1e-9)])
