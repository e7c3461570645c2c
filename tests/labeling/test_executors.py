"""Labeling in one process per core: the files of one process, and workers that die, are interrupted or lack memory."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from benchmarks.labeling import make_photos
from mien.app.cpu_count import free_bytes
from mien.app.inference.classifier import CPU
from mien.app.labeling import executors
from mien.app.labeling.executors import Processes, Setup, Task, Threads, local_executor
from mien.app.labeling.inputs import Item
from mien.app.labeling.journal import Result
from mien.app.labeling.options import LabelOptions
from mien.app.settings import Settings
from tests.labeling.conftest import Mien, labeled, tree
from tests.support import ROOT, eventually
from tests.support.albums import write_photos, write_video

OUTPUTS = ("--write", "csv,annotated,crops,report,episodes")


@pytest.fixture
def setup(settings: Settings, tmp_path: Path) -> Setup:
    (tmp_path / "out").mkdir()
    return Setup(settings, LabelOptions(out=tmp_path / "out"))


def test_processes_give_the_bytes_of_one_process(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_PER_PROCESS", 2)
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


def test_a_photo_that_kills_three_processes_is_an_error_and_the_others_are_labeled(
    setup: Setup, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "label_all", dying)
    items = [Item(path.name, os.fsencode(path), 1, "1") for path in sorted(photos.iterdir())]
    parts = Processes(setup, 1).run([items], frozenset())
    errors = {result.name: result.error for part in parts for result in part}
    assert errors.pop("2.jpg") == "3 worker processes died while they labeled it"
    assert errors == dict.fromkeys(["0.jpg", "1.jpg", "3.jpg", "4.jpg"])


def test_a_script_without_a_guard_gets_an_error_and_not_more_processes(mien: Mien, photos: Path) -> None:
    script = mien.out.with_name("script.py")
    script.write_text(
        "from pathlib import Path\n"
        "from mien.app.labeling import executors, run\n"
        "from mien.app.labeling.options import LabelOptions\n"
        "from mien.app.settings import InferenceSettings\n"
        "executors._PER_PROCESS = 1\n"
        f"options = LabelOptions(inputs=[{str(photos)!r}], out=Path({str(mien.out)!r}), workers=2)\n"
        "run.label(options, InferenceSettings.load())\n"
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


@pytest.mark.parametrize(
    ("work", "cores", "gigabytes", "provider", "processes"),
    [
        ((0, 20), 16, 64, CPU, 1),
        ((0, 1_000), 16, 64, CPU, 5),
        ((0, 100_000), 2, 64, CPU, 2),
        ((0, 100_000), 16, 1, CPU, 3),
        ((1, 0), 16, 64, CPU, 1),
        ((3, 0), 16, 64, CPU, 3),
        ((0, 100_000), 16, 64, "CUDAExecutionProvider", 1),
    ],
)
def test_as_many_processes_as_cores_memory_and_work(
    setup: Setup, work: tuple[int, int], cores: int, gigabytes: int, provider: str, processes: int
) -> None:
    with patch.multiple(executors, cores=lambda: cores, free_bytes=lambda: gigabytes * 10**9):
        executor = local_executor(setup, {"provider": provider}, *work)
    assert isinstance(executor, Threads if processes == 1 else Processes)
    assert processes in (1, executor.workers)


BELOW = {"a/b/memory.max": 1000, "a/b/memory.current": 700, "a/b/memory.stat": "inactive_file 300"}
FULL = {"a/memory.max": 500, "a/memory.current": 450, "a/memory.stat": "inactive_file 0"}
VERSION_1 = {"limit_in_bytes": 1000, "usage_in_bytes": 900, "stat": "total_inactive_file 400"}


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b", BELOW | {"a/memory.max": "max"}, 600),
        ("0::/a/b", BELOW | FULL, 50),
        ("4:memory:/a", {f"memory/a/memory.{name}": value for name, value in VERSION_1.items()}, 500),
    ],
    ids=["files in its cache are free", "the group around it is full", "version 1"],
)
def test_memory_is_what_the_tightest_control_group_leaves(
    tmp_path: Path, own: str, files: dict[str, object], expected: int
) -> None:
    for name, value in ({"own": own} | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(str(value))
    assert free_bytes(tmp_path, tmp_path / "own") == expected


def test_a_video_on_more_cores_is_labeled_by_as_many_threads(mien: Mien, folder: Path) -> None:
    write_video(folder / "a.avi", frames=8)
    with patch.object(executors, "ThreadPoolExecutor", wraps=ThreadPoolExecutor) as pool:
        assert len(mien.label(folder, "--workers", "3", "--write", "csv")) == 8
    assert {call.args for call in pool.call_args_list} == {(3,)}
