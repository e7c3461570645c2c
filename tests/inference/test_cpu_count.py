"""Core counts from affinity and cgroup quotas."""

import os
from pathlib import Path

import pytest

from mien.app.inference.runtime import cpu_count as module
from mien.app.inference.runtime.cpu_count import cores, cpu_quota


def group(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text, encoding="utf-8")
    return folder


def own(folder: Path, text: str) -> Path:
    path = folder / "self"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [("200000 100000\n", 2.0), ("50000 100000\n", 0.5), ("max 100000\n", None), ("", None), ("-1 100000\n", None)],
)
def test_the_quota_of_a_container_is_read_if_it_has_one(tmp_path: Path, text: str, expected: float | None) -> None:
    root = group(tmp_path / "cgroup", cpu_max=text)
    assert cpu_quota(root, own(tmp_path, "0::/\n")) == expected
    assert cpu_quota(tmp_path / "nowhere", tmp_path / "nothing") is None


def test_the_tightest_enclosing_group_sets_the_quota(tmp_path: Path) -> None:
    root = group(tmp_path / "cgroup")
    group(root / "user.slice", cpu_max="150000 100000")
    group(root / "user.slice" / "mien.service", cpu_max="400000 100000")
    group(root / "other.slice", cpu_max="10000 100000")
    assert cpu_quota(root, own(tmp_path, "0::/user.slice/mien.service\n")) == 1.5


def test_cgroup_v1_is_read(tmp_path: Path) -> None:
    folder = group(tmp_path / "cgroup" / "cpu" / "docker" / "abc")
    (folder / "cpu.cfs_quota_us").write_text("300000\n", encoding="utf-8")
    (folder / "cpu.cfs_period_us").write_text("100000\n", encoding="utf-8")
    lines = "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n"
    assert cpu_quota(tmp_path / "cgroup", own(tmp_path, lines)) == 3.0


@pytest.mark.parametrize(("quota", "expected"), [(None, 8), (2.0, 2), (2.5, 3), (0.2, 1), (64.0, 8)])
def test_cores_are_limited_by_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)
    monkeypatch.setattr(module, "cpu_quota", lambda: quota)
    assert cores() == expected
