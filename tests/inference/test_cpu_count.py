"""Core counts from affinity and cgroup quotas."""

import os
from pathlib import Path

import pytest

from mien.app.inference.runtime import cpu_count as module
from mien.app.inference.runtime.cpu_count import cores, cpu_quota

SLICES = "0::/user.slice/mien.service\n"
V1 = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n"


@pytest.mark.parametrize(
    ("own", "files", "expected", "expected_cores"),
    [
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None, 8),
        ("0::/\n", {"cpu.max": ""}, None, 8),
        # the tightest enclosing group counts
        (SLICES, {"user.slice/cpu.max": "150000 100000", "user.slice/mien.service/cpu.max": "400000 100000"}, 1.5, 2),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": "300000\n", "cpu/docker/abc/cpu.cfs_period_us": "100000\n"}, 3.0, 3),
    ],
)
def test_cores_are_limited_by_affinity_and_the_quota_of_the_tightest_group(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str,
    files: dict[str, str],
    expected: float | None,
    expected_cores: int,
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "self").write_text(own, encoding="utf-8")
    quota = cpu_quota(tmp_path, tmp_path / "self")
    assert quota == expected
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    monkeypatch.setattr(module, "cpu_quota", lambda: quota)
    assert cores() == expected_cores
