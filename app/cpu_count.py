"""Number of available CPU cores, limited by CPU affinity and the cgroup's CPU quota.

A container with a quota of two cores on a 64-core host sees 64 cores. With 64 threads, the kernel would throttle the
process once they use up the quota of a period. `loky.cpu_count` reads only the root group, so it misses the quota of a
systemd service.
"""

import math
import os
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN_GROUP: Final = Path("/proc/self/cgroup")


def cores() -> int:
    """Cores available to this process, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def cpu_quota(groups: Path = _GROUPS, own: Path = _OWN_GROUP) -> float | None:
    """Cores granted by the tightest control group of this process; None without a limit.

    Reads `cpu.max` of cgroup v2 and `cpu.cfs_quota_us` of v1.
    """
    limits = [limit for folder in _folders(groups, own) if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def _folders(groups: Path, own: Path) -> list[Path]:
    """The control group of the process and its parents, as far as a container can see them."""
    folders = [groups, groups / "cpu"]
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = groups / "cpu" if controllers else groups
        inner = root / path.lstrip("/")
        folders += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return folders


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
