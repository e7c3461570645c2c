"""Held-out splits by hash: the same images on every machine, in any order of the files.

Names are sorted by their SHA-256, and the first ones are held out, class by class. The result does not depend on a
random generator or a seed.
"""

import hashlib
from collections.abc import Mapping


def hold_out(class_of: Mapping[str, str | None], share: float) -> frozenset[str]:
    """Select a share of the names of each class (rounded down): those with the smallest SHA-256."""
    by_class: dict[str | None, list[str]] = {}
    for name in sorted(class_of, key=lambda name: hashlib.sha256(name.encode()).digest()):
        by_class.setdefault(class_of[name], []).append(name)
    return frozenset(name for names in by_class.values() for name in names[: int(len(names) * share + 1e-9)])
