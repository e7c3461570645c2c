"""Labeling in one process per core: the files of one process, and workers that die, are interrupted or lack memory."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.labeling import make_photos
from mien.app.cpu_count import free_bytes
from mien.app.inference.classifier import CPU
from mien.app.labeling import executors
from mien.app.labeling.executors import BATCH, Processes, Setup, Task, Threads, local_executor
from mien.app.labeling.inputs import Item
from mien.app.labeling.journal import Result
from mien.app.labeling.options import LabelOptions
from mien.app.settings import Settings
from tests.labeling.conftest import Mien, labeled, resize, tree
from tests.support import ROOT, eventually
from tests.support.albums import write_photos, write_video

OUTPUTS = ("--write", "csv,annotated,crops,report,episodes")


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes already for a few photos."""
    monkeypatch.setattr(executors, "_PER_PROCESS", 2)


@pytest.fixture
def setup(settings: Settings, tmp_path: Path) -> Setup:
    (tmp_path / "out").mkdir()
    return Setup(settings, LabelOptions(out=tmp_path / "out"))


def tasks_of(photos: Path, size: int = BATCH) -> list[Task]:
    items = [Item(path.name, os.fsencode(path), 1, "1") for path in sorted(photos.iterdir())]
    return [items[first : first + size] for first in range(0, len(items), size)]


def run(executor: Processes, tasks: list[Task]) -> dict[str, Result]:
    return {result.name: result for part in executor.run(tasks, frozenset()) for result in part}


@pytest.mark.usefixtures("many")
def test_processes_give_the_bytes_of_one_process(mien: Mien, photos: Path, tmp_path: Path) -> None:
    write_photos(photos, *(f"more/{number}.jpg" for number in range(20)))
    for name in ("a.avi", "b.avi"):
        write_video(photos / name, frames=6)
    (photos / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    mien.label(photos, *OUTPUTS, "--workers", "1", out=tmp_path / "one", exit_code=3)
    mien.label(photos, *OUTPUTS, "--workers", "2", exit_code=3)
    assert tree(mien.out) == tree(tmp_path / "one")


def dying(setup: Setup, task: Task) -> list[Result]:
    """Label a task, but end the process at photo 2.jpg."""
    if any(item.name == "2.jpg" for item in task):
        os.kill(os.getpid(), signal.SIGKILL)
    return list(executors.label_batch(setup, task))


def test_a_killed_process_costs_a_repeat_of_its_batch(setup: Setup, photos: Path) -> None:
    executor, killed, results = Processes(setup, 2), False, {}
    for part in executor.run(tasks_of(photos, 1), frozenset()):
        results |= {result.name: result.status for result in part}
        if part and not killed:
            multiprocessing.active_children()[0].kill()
            killed = True
    assert results == {f"{number}.jpg": "ok" for number in range(5)}


def test_a_photo_that_kills_three_processes_is_an_error_and_the_others_are_labeled(
    setup: Setup, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "label_all", dying)
    results = run(Processes(setup, 1), tasks_of(photos))
    assert {name: result.status for name, result in results.items() if result.status != "ok"} == {"2.jpg": "error"}
    assert len(results) == 5
    assert "3 worker processes died" in str(results["2.jpg"].error)


def test_a_script_without_a_guard_gets_an_error_and_not_more_processes(mien: Mien, photos: Path) -> None:
    script = mien.out.with_name("script.py")
    script.write_text(
        "from pathlib import Path\n"
        "from mien.app.labeling import executors, run\n"
        "from mien.app.labeling.options import LabelOptions, Reporter\n"
        "from mien.app.settings import InferenceSettings\n"
        "executors._PER_PROCESS = 1\n"
        f"options = LabelOptions(inputs=[{str(photos)!r}], out=Path({str(mien.out)!r}), workers=2)\n"
        "run.label(options, InferenceSettings.load(), Reporter())\n"
    )
    command = [sys.executable, script]
    done = subprocess.run(command, cwd=ROOT, env=mien.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "A script that labels needs `if __name__" in done.stderr.splitlines()[-1]


def test_an_interrupt_ends_all_processes_and_a_rerun_completes(mien: Mien, tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", write_photos(tmp_path / "ten", count=10), 450)
    command = ("label", tmp_path / "photos", "--out", mien.out, "--workers", "2", "--write", "csv")
    driver = mien.start(*command)
    eventually(lambda: labeled(mien.out) or driver.poll())
    children = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
    assert len(children) >= 2
    os.kill(driver.pid, signal.SIGINT)
    driver.communicate(timeout=30)
    assert driver.returncode == 4
    eventually(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])
    assert 0 < labeled(mien.out) < 450
    assert mien(*command).exit_code == 0
    assert labeled(mien.out) == 450


@pytest.mark.usefixtures("many")
def test_a_full_disk_ends_all_processes(mien: Mien, tmp_path: Path, small_disk: Path) -> None:
    photos, out = write_photos(tmp_path / "many", count=80), small_disk / "out"
    command = (photos, "--write", "csv,annotated,crops", "--workers", "2")
    resize(small_disk, "1800k")  # more than the first batch of each process
    full = mien.run(*command, out=out)
    assert (full.exit_code, "no space left" in full.stderr) == (6, True), full.stderr
    resize(small_disk, "64m")
    assert "already labeled" in mien.run(*command, out=out).stderr


@pytest.mark.parametrize(
    ("work", "cores", "gigabytes", "provider", "processes"),
    [
        ((0, 1), 16, 64, CPU, 1),
        ((0, 20), 16, 64, CPU, 1),
        ((0, 1_000), 16, 64, CPU, 5),
        ((0, 100_000), 16, 64, CPU, 16),
        ((0, 100_000), 2, 64, CPU, 2),  # as of a quota of 1.5
        ((0, 100_000), 16, 1, CPU, 3),
        ((1, 0), 16, 64, CPU, 1),
        ((3, 0), 16, 64, CPU, 3),
        ((0, 100_000), 16, 64, "CUDAExecutionProvider", 1),
    ],
)
def test_as_many_processes_as_cores_memory_and_work(
    setup: Setup,
    monkeypatch: pytest.MonkeyPatch,
    work: tuple[int, int],
    cores: int,
    gigabytes: int,
    provider: str,
    processes: int,
) -> None:
    monkeypatch.setattr(executors, "cores", lambda: cores)
    monkeypatch.setattr(executors, "free_bytes", lambda: gigabytes * 10**9)
    executor = local_executor(setup, {"provider": provider}, *work)
    assert isinstance(executor, Threads if processes == 1 else Processes)
    assert processes in (1, executor.workers)


@pytest.mark.parametrize(
    ("own", "files", "expected_mb"),
    [
        ("0::/a/b\n", {"a/memory": ("max", 9, 0), "a/b/memory": ("1000", 700, 300)}, 600),
        ("0::/a/b\n", {"a/memory": ("500", 450, 0), "a/b/memory": ("1000", 700, 300)}, 50),
        ("4:memory:/a\n", {"memory/a/memory": (None, 900, 400)}, 500),
    ],
    ids=["files in its cache are free", "the group around it is full", "version 1"],
)
def test_memory_is_what_the_tightest_control_group_leaves(
    tmp_path: Path, own: str, files: dict[str, tuple[str | None, int, int]], expected_mb: int
) -> None:
    def write(name: str, value: object) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n", encoding="ascii")

    write("own", own.strip())
    for name, (limit, used, cached) in files.items():
        is_old, scaled = limit is None, limit if limit == "max" else int(limit or 1000) * 10**6
        write(f"{name}.{'limit_in_bytes' if is_old else 'max'}", scaled)
        write(f"{name}.{'usage_in_bytes' if is_old else 'current'}", used * 10**6)
        write(f"{name}.stat", f"anon 5\n{'total_' * is_old}inactive_file {cached * 10**6}")
    assert free_bytes(tmp_path, tmp_path / "own") == expected_mb * 10**6


def test_a_video_on_more_cores_is_labeled_by_as_many_threads(
    mien: Mien, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_video(folder / "a.avi", frames=8)
    threads, real = set[int](), executors.ThreadPoolExecutor
    monkeypatch.setattr(
        executors, "ThreadPoolExecutor", lambda count, **names: threads.add(count) or real(count, **names)
    )
    assert len(mien.label(folder, "--workers", "3", "--write", "csv")) == 8
    assert threads == {3}
