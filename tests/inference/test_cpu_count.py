"""Core counts from affinity and cgroup quotas."""

import os
from pathlib import Path

import pytest

from mien.app.inference.runtime import cpu_count as module
from mien.app.inference.runtime.cpu_count import cores, cpu_quota

SLICES = "0::/user.slice/mien.service\n"
V1 = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n"


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"cpu.max": "max 100000\n"}, None),
        ("0::/\n", {"cpu.max": ""}, None),
        ("0::/\n", {"cpu.max": "-1 100000\n"}, None),
        ("0::/\n", {}, None),
        # the tightest enclosing group counts, and no other
        (SLICES, {"user.slice/cpu.max": "150000 100000", "user.slice/mien.service/cpu.max": "400000 100000"}, 1.5),
        (SLICES, {"user.slice/cpu.max": "150000 100000", "other.slice/cpu.max": "10000 100000"}, 1.5),
        (V1, {"cpu/docker/abc/cpu.cfs_quota_us": "300000\n", "cpu/docker/abc/cpu.cfs_period_us": "100000\n"}, 3.0),
    ],
)
def test_the_quota_is_that_of_the_tightest_group_of_this_process(
    tmp_path: Path, own: str, files: dict[str, str], expected: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "self").write_text(own, encoding="utf-8")
    assert cpu_quota(tmp_path, tmp_path / "self") == expected
    assert cpu_quota(tmp_path / "nowhere", tmp_path / "nothing") is None


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (2.0, 2), (2.5, 3), (0.2, 1), (64.0, 8)])
def test_cores_are_limited_by_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    monkeypatch.setattr(module, "cpu_quota", lambda: quota)
    assert cores() == expected
