"""Available CPU cores and memory, limited by CPU affinity and the control groups of the process.

A container with a quota of two cores on a 64-core host sees 64 cores. With 64 threads, the kernel would throttle the
process once they use up the quota of a period. `loky.cpu_count` reads only the root group, so it misses the quota of a
systemd service.
"""

import math
import os
import sys
from contextlib import suppress
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
    limits = [limit for folder in _folders(groups, own, "cpu") if (limit := _limit(folder)) is not None]
    return min(limits, default=None)


def free_bytes(groups: Path = _GROUPS, own: Path = _OWN_GROUP) -> int:
    """Memory that the machine and the tightest control group leave; cached files count as free."""
    free = [left for folder in _folders(groups, own, "memory") if (left := _left(folder)) is not None]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    return min(free, default=sys.maxsize)


def _folders(groups: Path, own: Path, controller: str) -> list[Path]:
    """The control group of the process and its parents, as far as a container can see them."""
    folders = list[Path]()
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return folders
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
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


def _left(folder: Path) -> int | None:
    """Bytes that a control group leaves; None without a limit."""
    limit, used = folder / "memory.max", folder / "memory.current"
    if not limit.exists():
        limit, used = folder / "memory.limit_in_bytes", folder / "memory.usage_in_bytes"
    try:
        stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
        cached = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
        return int(limit.read_text(encoding="ascii")) - int(used.read_text(encoding="ascii")) + cached
    except (OSError, ValueError):
        return None
