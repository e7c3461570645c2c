"""Labeling with Ray on a local cluster: the files of the local executor, also after a killed worker."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from mien.app.errors import LabelingError
from mien.app.labeling.cluster import label_on_worker, open_on_worker
from mien.app.labeling.copies import ANNOTATED
from mien.app.labeling.executors import Setup
from mien.app.labeling.inputs import Item
from mien.app.labeling.options import LabelOptions
from mien.app.settings import Settings
from tests.labeling.conftest import Mien, labeled, tree
from tests.support import eventually
from tests.support.albums import make_album

OUTPUTS = "csv,jsonl,annotated,crops,report,episodes"


def workers_of(driver: int) -> Iterator[int]:
    """Labeling processes of the cluster of `driver`."""
    parents: dict[int, int] = {}
    labeling: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # The process may have ended.
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if (path / "cmdline").read_bytes().startswith(b"ray::label_on_worker"):
                labeling.append(int(path.name))
    for process in labeling:
        above = process
        while above in parents and above != driver:
            above = parents[above]
        if above == driver:
            yield process


@pytest.mark.slow
@pytest.mark.timeout(600)  # A cluster starts slowly on a busy machine.
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the workers in /proc")
def test_a_killed_worker_leaves_the_files_of_a_local_run(mien: Mien, tmp_path: Path) -> None:
    album = make_album(tmp_path / "album", 100)
    mien.label(album, "--write", OUTPUTS, out=tmp_path / "local", exit_code=3)
    ray = ("--engine", "ray", "--workers", "2")
    driver = mien.start("label", album, "--out", mien.out, "--write", OUTPUTS, *ray)
    eventually(lambda: labeled(mien.out) or driver.poll(), timeout_s=400)
    workers: list[int] = []
    eventually(lambda: workers.extend(workers_of(driver.pid)) or workers, failure=lambda: "no worker was found")
    os.kill(workers[0], signal.SIGKILL)  # It labels a batch.
    _, log = driver.communicate(timeout=400)
    assert driver.returncode == 3, log.decode()
    assert tree(mien.out) == tree(tmp_path / "local")


def test_a_machine_without_the_output_folder_or_with_another_precision_is_reported(
    settings: Settings, tmp_path: Path
) -> None:
    setup = Setup(settings, LabelOptions(inputs=[str(tmp_path)], out=tmp_path), frozenset({ANNOTATED}))
    facts = open_on_worker(setup)
    task = [Item("a.jpg", b"/a.jpg", 1)]
    with pytest.raises(LabelingError, match=r"differs: precision fp32 instead of int8"):
        label_on_worker(setup, facts | {"precision": "int8"}, task)
    with pytest.raises(LabelingError, match="cannot find the output folder"):
        label_on_worker(setup, facts, task)
    (missing,) = label_on_worker(replace(setup, pictures=frozenset()), facts, task)
    assert missing.reason == "not_found", "tables alone need no shared output folder"
