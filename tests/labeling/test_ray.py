"""Labeling with Ray on a local cluster: the rows of the local executor, also after killed workers and drivers."""

import json
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from mien.app.labeling import cluster
from mien.app.labeling.cluster import NotReady, label_on_worker, open_on_worker
from mien.app.labeling.files import STATE_DIR
from mien.app.labeling.images import ANNOTATED
from mien.app.labeling.journal import NoJournal, open_journal
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.records import Input
from mien.app.settings import Settings
from tests.labeling.conftest import Mien, tree
from tests.support import eventually
from tests.support.albums import make_album, write_photos, write_video

OUTPUTS = "csv,files,jsonl,parquet,annotated,crops,report,timeline"
RAY = ("--engine", "ray", "--workers", "2", "--write", OUTPUTS, "--json-log")
# a cluster takes seconds to start on an idle machine, and much longer on a busy one
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, archives, broken files and a video."""
    folder = make_album(tmp_path_factory.mktemp("album"), 200)
    write_video(folder / "clip.avi", frames=8)
    return folder


def labeled(out: Path) -> int:
    """Number of images whose results are committed."""
    with suppress(NoJournal), closing(open_journal(out)) as view:
        return view.counts().total()
    return 0


def wait_for_images(process: "subprocess.Popen[bytes]", out: Path, count: int) -> int:
    deadline = time.monotonic() + 400
    while (number := labeled(out)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return number


def workers_of(driver: int) -> Iterator[int]:
    """Labeling processes of the cluster of `driver`."""
    parents: dict[int, int] = {}
    labeling: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if (path / "cmdline").read_bytes().startswith(b"ray::label_on_worker"):
                labeling.append(int(path.name))
        except OSError:  # ended meanwhile
            continue
    for process in labeling:
        above = process
        while above in parents and above != driver:
            above = parents[above]
        if above == driver:
            yield process


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds the workers in /proc")
def test_killed_workers_and_drivers_leave_the_files_of_a_local_run(mien: Mien, album: Path, tmp_path: Path) -> None:
    out, local = mien.out, tmp_path / "local"
    mien.label(album, "--write", OUTPUTS, out=local, exit_code=3)
    total = labeled(local)

    driver = mien.start("label", album, "--out", out, *RAY)
    first = wait_for_images(driver, out, 1)
    workers: list[int] = []
    eventually(lambda: workers.extend(workers_of(driver.pid)) or workers, failure=lambda: "no worker was found")
    os.kill(workers[0], signal.SIGKILL)  # while it labels a batch
    wait_for_images(driver, out, first + 40)
    driver.kill()
    driver.communicate()
    done = labeled(out)
    assert done < total, "the run was over before it could be killed: make the album larger"

    again = mien.start("label", album, "--out", out, *RAY)
    _, stderr = again.communicate(timeout=400)
    assert again.returncode == 3, stderr.decode()
    summary = json.loads(stderr.splitlines()[-1])
    assert 0 < summary["new"] <= total - done, "what was committed is not labeled again"
    assert tree(out) == tree(local)


def test_options_of_a_cluster_and_a_missing_library_are_named(
    mien: Mien, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = write_photos(tmp_path / "photos", count=1)
    assert "--engine ray" in mien.run(photos, "--ray-address", "auto").stderr
    monkeypatch.setattr(cluster.importlib.util, "find_spec", lambda _name: None)
    missing = mien.run(photos, "--engine", "ray")
    assert missing.exit_code == 1
    assert "pip install ray" in missing.stderr
    assert not mien.out.exists()


def test_a_missing_cluster_is_named(mien: Mien, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", count=1)
    process = mien.start("label", photos, "--out", mien.out, "--engine", "ray", "--ray-address", "127.0.0.1:1")
    _, stderr = process.communicate()
    assert process.returncode == 1
    assert "cannot reach the cluster at 127.0.0.1:1" in stderr.decode()
    assert "Traceback" not in stderr.decode()


def test_a_machine_without_the_folders_is_reported(settings: Settings, tmp_path: Path) -> None:
    elsewhere = pickle.dumps((LabelOptions(inputs=[str(tmp_path / "elsewhere")], out=tmp_path), settings))
    with pytest.raises(NotReady, match="cannot find the input"):
        open_on_worker(elsewhere)
    setup = pickle.dumps((LabelOptions(inputs=[str(tmp_path)], out=tmp_path), settings))
    facts = open_on_worker(setup)
    drawn = Input("a.jpg", "file", b"/a.jpg", 1, row=1, images=ANNOTATED)
    with pytest.raises(NotReady, match=r"differs: precision fp32 instead of int8"):
        label_on_worker(setup, facts | {"precision": "int8"}, [drawn], {}, "this")
    (tmp_path / STATE_DIR).mkdir()
    for run_id in (None, "other"):  # another folder, and that of another run
        if run_id is not None:
            (tmp_path / STATE_DIR / cluster.RUN_ID).write_text(run_id)
        with pytest.raises(NotReady, match="cannot find the output folder"):
            label_on_worker(setup, facts, [drawn], {}, "this")
