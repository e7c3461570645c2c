"""Runs in this process, in one per core and on a Ray cluster: the same files, whatever stops, dies or fails."""

import os
import pkgutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest

from benchmarks.labeling import make_photos
from mien.app.cpu_count import free_bytes
from mien.app.errors import LabelingError, Stopped
from mien.app.inference.classifier import CPU
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Photo
from mien.app.labeling import executors, run
from mien.app.labeling.cluster import label_on_worker, open_on_worker
from mien.app.labeling.copies import ANNOTATED
from mien.app.labeling.executors import Processes, Setup, Task, Threads, local_executor
from mien.app.labeling.inputs import Item
from mien.app.labeling.journal import Result
from mien.app.labeling.options import LabelOptions
from mien.app.settings import Settings
from mien.app.video.reader import VideoFrame
from mien.data.contract import Array
from mien.models.manifest import Manifest
from tests.labeling.conftest import Labeled, Mien, labeled, tree
from tests.support import ROOT, encoded, eventually, gradient_image
from tests.support.albums import by_file, write_photos, write_video

OUTPUTS = ("--write", "csv,jsonl,annotated,crops,coco,report,episodes")


@pytest.fixture
def setup(settings: Settings, tmp_path: Path) -> Setup:
    (tmp_path / "out").mkdir()
    return Setup(settings, LabelOptions(inputs=[str(tmp_path)], out=tmp_path / "out"))


# The same files


def test_processes_give_the_bytes_of_one_process(mien: Mien, album: Labeled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_PER_PROCESS", 50)
    mien.label(album.photos, *OUTPUTS, "--workers", "2", exit_code=3)
    assert tree(mien.out) == tree(album.out)


@pytest.mark.slow
def test_a_run_killed_repeatedly_ends_in_the_same_bytes(mien: Mien, album: Labeled) -> None:
    def kill_when(is_due: Callable[[], object]) -> None:
        process = mien.start("label", album.photos, "--out", mien.out, *OUTPUTS)
        eventually(lambda: is_due() or process.poll())
        process.kill()
        process.communicate()  # The pipes are closed when its workers have ended, too.

    kill_when(lambda: labeled(mien.out))
    kill_when((mien.out / "coco.json").exists)  # Other outputs are still written.
    mien.label(album.photos, *OUTPUTS, exit_code=3)
    assert tree(mien.out) == tree(album.out)


@pytest.mark.slow
@pytest.mark.timeout(600)  # A cluster starts slowly on a busy machine.
def test_a_cluster_leaves_the_files_of_a_local_run(mien: Mien, album: Labeled) -> None:
    driver = mien.start("label", album.photos, "--out", mien.out, *OUTPUTS, "--engine", "ray", "--workers", "2")
    _, log = driver.communicate()
    assert driver.returncode == 3, log.decode()
    assert tree(mien.out) == tree(album.out)


def test_a_machine_without_the_output_folder_or_with_another_precision_is_reported(setup: Setup) -> None:
    setup, task = replace(setup, pictures=frozenset({ANNOTATED})), [Item("a.jpg", b"/a.jpg", 1)]
    facts = open_on_worker(setup)
    with pytest.raises(LabelingError, match=r"differs: precision fp32 instead of int8"):
        label_on_worker(setup, facts | {"precision": "int8"}, task)
    with pytest.raises(LabelingError, match="cannot find the output folder"):
        label_on_worker(setup, facts, task)
    (missing,) = label_on_worker(replace(setup, pictures=frozenset()), facts, task)
    assert missing.reason == "not_found", "tables alone need no shared output folder"


# Signals


def test_a_signal_at_start_while_labeling_or_writing_exits_with_4_and_a_rerun_ends_in_the_same_files(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mien.label(photos, out=tmp_path / "whole")
    monkeypatch.setattr("mien.app.labeling.run.BATCH", 1)
    for name in ("run.open_labeler", "run.scan", "executors.annotate", "report.render_page", "run.write_atomic"):
        function, out = f"mien.app.labeling.{name}", tmp_path / name
        real = pkgutil.resolve_name(function)

        def killing(*arguments: Any, function: str = function, real: Any = real, **options: Any) -> Any:
            monkeypatch.setattr(function, real)  # A second signal would end the run at once.
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except Stopped:
                if function.endswith("open_labeler"):  # as a native library does while it is imported
                    raise ImportError from None
                raise
            return real(*arguments, **options)

        monkeypatch.setattr(function, killing)
        stopped = mien.run(photos, "--workers", "1", out=out)
        assert (stopped.exit_code, "topped by SIGTERM" in stopped.output) == (4, True), stopped.output
        assert name != "executors.annotate" or len(list(out.glob("annotated/*"))) < 4, "what waits is left"
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("label")]
        assert len(mien.label(photos, out=out)) == 5
        assert tree(out) == tree(tmp_path / "whole"), name


def test_an_interrupt_ends_all_processes_and_a_rerun_completes(mien: Mien, tmp_path: Path) -> None:
    make_photos(tmp_path / "photos", write_photos(tmp_path / "ten", count=10), 450)
    command = ("label", tmp_path / "photos", "--out", mien.out, "--workers", "2", "--write", "csv")
    driver = mien.start(*command)
    eventually(lambda: labeled(mien.out) or driver.poll())
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
    _, log = driver.communicate(timeout=30)
    assert (driver.returncode, b"Traceback" in log) == (4, False), log.decode()
    with pytest.raises(ProcessLookupError):
        eventually(lambda: os.killpg(driver.pid, 0))
    assert 0 < labeled(mien.out) < 450
    assert mien(*command).exit_code == 0
    assert labeled(mien.out) == 450


# Processes


def dying(setup: Setup, task: Task) -> list[Result]:
    """Label a task, but end the process at photo 2.jpg."""
    if any(item.name == "2.jpg" for item in task):
        with (setup.options.out / "deaths").open("a") as file:
            file.write("x" * (signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])))
        os.kill(os.getpid(), signal.SIGKILL)
    return list(executors.label_batch(setup, task))


def test_a_photo_that_kills_three_processes_is_an_error_and_the_others_are_labeled(
    mien: Mien, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "label_all", dying)
    monkeypatch.setattr(executors, "_PER_PROCESS", 3)
    errors = by_file(mien.label(photos, "--workers", "2", exit_code=3), "error")
    assert errors.pop("2.jpg") == "3 worker processes died while they labeled it"
    assert errors == dict.fromkeys(["0.jpg", "1.jpg", "3.jpg", "4.jpg"], "")
    assert (mien.out / "deaths").read_text() == "xxx"


def test_a_script_without_a_guard_gets_an_error_and_not_more_processes(mien: Mien, photos: Path) -> None:
    script = mien.out.with_name("script.py")
    script.write_text(
        "from mien.app.cli import app\n"
        "from mien.app.labeling import executors\n"
        "executors._PER_PROCESS = 1\n"
        f"app(['label', {str(photos)!r}, '--out', {str(mien.out)!r}, '--workers', '2'])\n"
    )
    done = subprocess.run([sys.executable, script], cwd=ROOT, env=mien.environment, capture_output=True, check=False)
    assert (done.returncode, b"A script that labels needs `if __name__" in done.stderr.splitlines()[-1]) == (1, True)


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


VERSION_2 = {"a/b/c/memory.max": 900, "a/b/c/memory.current": 100, "a/b/c/memory.stat": "inactive_file 0"}
VERSION_2 |= {"a/b/memory.max": 1000, "a/b/memory.current": 700, "a/b/memory.stat": "inactive_file 300"}
VERSION_1 = {"limit_in_bytes": 1000, "usage_in_bytes": 900, "stat": "total_inactive_file 400"}


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b/c", VERSION_2 | {"a/memory.max": "max"}, 600),
        ("4:memory:/a", {f"memory/a/memory.{name}": value for name, value in VERSION_1.items()}, 500),
    ],
)
def test_memory_is_what_the_tightest_control_group_leaves_whose_cached_files_are_free(
    tmp_path: Path, own: str, files: dict[str, object], expected: int
) -> None:
    for name, value in ({"own": own} | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(str(value))
    assert free_bytes(tmp_path, tmp_path / "own") == expected


def test_a_video_on_more_cores_is_labeled_by_as_many_threads(mien: Mien, folder: Path) -> None:
    write_video(folder / "a.avi", frames=8)
    with (
        patch.object(executors, "ThreadPoolExecutor", wraps=ThreadPoolExecutor) as pool,
        patch.object(run, "local_executor", wraps=local_executor) as chosen,
        patch.object(run, "_SHORT_VIDEO_BYTES", 1000),
    ):
        assert len(mien.label(folder, "--workers", "3", "--write", "csv")) == 8
    assert chosen.call_args.args[2:] == (1, 0), "one long video"
    assert {call.args for call in pool.call_args_list} == {(3,)}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak in the unit of Linux")
def test_memory_of_eight_hundred_files_is_that_of_a_fifth_of_them(mien: Mien, tmp_path: Path) -> None:
    thirty, peaks_mb = write_photos(tmp_path / "thirty", count=30), []
    for count in (160, 800):
        make_photos(tmp_path / str(count), thirty, count)
        options = ("--workers", "2", "--write", "csv,jsonl,coco,report", "--out", tmp_path / f"out{count}")
        process = mien.start("label", tmp_path / str(count), "--quiet", *options)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        peaks_mb.append(used.ru_maxrss / 1024)
    assert peaks_mb[1] - peaks_mb[0] < 25


# Stages that fail


def test_a_photo_or_a_video_on_which_a_stage_fails_is_a_row_but_a_model_that_fails_for_all_ends_the_run(
    mien: Mien, photos: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (write_photos(folder, "face.jpg") / "none.png").write_bytes(encoded(gradient_image()))
    with monkeypatch.context() as patched:
        patched.setattr(Manifest, "probabilities", Mock(side_effect=RuntimeError("the GPU is gone")))
        mien.refuses("the GPU is gone", photos)
        assert len(mien.label(folder, out=photos.parent / "one face", exit_code=3)) == 2
    poison, prepare, classify, calls = (photos / "2.jpg").read_bytes(), Labeler.prepare, Labeler.classify, []

    def preparing(pipeline: Labeler, payload: bytes, **options: bool) -> Photo:
        if payload == poison:
            raise RuntimeError("the network has no answer")
        return prepare(pipeline, payload, **options)

    def classifying(pipeline: Labeler, crops: Array) -> Array:
        calls.append(len(crops))
        if len(calls) in (1, 4):  # They are the whole batch, and then its third photo.
            raise MemoryError
        return classify(pipeline, crops)

    for name in ("x.avi", "y.avi"):
        write_video(photos / name, frames=2)
    monkeypatch.setattr(Labeler, "prepare", preparing)
    monkeypatch.setattr(Labeler, "classify", classifying)
    monkeypatch.setattr(VideoFrame, "pixels", Mock(side_effect=[RuntimeError("no known type"), MemoryError]))
    assert by_file(mien.label(photos, exit_code=3), "reason", "error") == {
        **dict.fromkeys(("0.jpg", "1.jpg", "4.jpg"), ("", "")),
        "2.jpg": ("failed", "RuntimeError: the network has no answer"),
        "3.jpg": ("too_large", "out of memory"),
        "x.avi": ("failed", "RuntimeError: no known type"),
        "y.avi": ("too_large", "out of memory"),
    }
    assert calls == [4, 1, 1, 1, 1]
