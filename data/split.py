"""Held-out splits by hash: the same images on every machine, in any order of the files.

Names are sorted by their SHA-256, and the first ones are held out, class by class. The result does not depend on a
random generator or a seed.
"""

import hashlib
from collections.abc import Iterable


def hold_out(names: Iterable[str], share: float) -> frozenset[str]:
    """Select a share of the names (rounded down): those with the smallest SHA-256. Call it once per class."""
    ranked = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
    return frozenset(ranked[: int(len(ranked) * share + 1e-9)])
