"""How many cores may this process use? What the scheduler allows, and no more than its container's CPU quota.

A container with a limit of two cores on a host of sixty-four sees sixty-four: as many threads would take turns on two,
and the kernel would stop them all for the rest of each period once the quota is spent.
"""

import math
import os
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUP: Final = Path("/proc/self/cgroup")


def cores() -> int:
    """Cores that this process may use, at least one."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cpu_quota(groups: Path = _GROUPS, own: Path = _OWN_GROUP) -> float | None:
    """Cores that the tightest control group around this process grants; None without a limit.

    Reads `cpu.max` of cgroup v2, `cpu.cfs_quota_us` of v1.
    """
    limits = [limit for folder in _folders(groups, own) if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _folders(groups: Path, own: Path) -> list[Path]:
    """The process's group and those around it, as far as they can be seen from inside a container."""
    found = [groups, groups / "cpu"]
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = groups / "cpu" if controllers else groups
        inner = root / path.lstrip("/")
        found += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return found


def _limit(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="utf-8").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="utf-8").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="utf-8").strip()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError):
        return None
