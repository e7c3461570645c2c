"""Ray engine on a local cluster: killed workers and drivers, with the rows of each file exactly once."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mien.app.labeling.ray import cluster
from mien.app.labeling.ray import engine as ray_engine
from mien.app.labeling.ray.partitions import begin_run
from mien.app.settings import Settings
from tests.albums import make_album, parquet_rows, write_photos
from tests.integration.labeling.conftest import Mien

RAY = ("--engine", "ray", "--workers", "2", "--partition-files", "16", "--json-log")
# a cluster takes seconds to start on an idle machine, and much longer on a busy one
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_album(tmp_path_factory.mktemp("album"), 96)


def partitions(out: Path) -> dict[str, int]:
    """Modification time of each committed partition."""
    return {path.name: path.stat().st_mtime_ns for path in (out / "files").glob("part-*.parquet")}


def wait_for_partitions(process: "subprocess.Popen[bytes]", out: Path, count: int) -> None:
    deadline = time.monotonic() + 400
    while len(partitions(out)) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def actors_of(driver: int) -> Iterator[int]:
    """Labeling processes of the cluster of `driver`."""
    parents: dict[int, int] = {}
    labeling: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            if (path / "cmdline").read_bytes().startswith(b"ray::MapWorker(MapBatches(Labeler)"):
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
def test_killed_workers_and_drivers_leave_the_rows_of_each_file_once(mien: Mien, album: Path, tmp_path: Path) -> None:
    out, local = tmp_path / "out", tmp_path / "local"
    assert mien("label", album, "--out", local, "--write", "parquet", "--quiet").exit_code == 3

    driver = mien.start("label", album, "--out", out, *RAY)
    wait_for_partitions(driver, out, 1)
    workers = list(actors_of(driver.pid))
    assert workers, "no worker was found"
    os.kill(workers[0], signal.SIGKILL)
    wait_for_partitions(driver, out, 3)
    assert len(partitions(out)) < 7, "the run was over before it could be killed: make the album larger"
    driver.kill()
    driver.communicate()
    done = partitions(out)

    again = mien.start("label", album, "--out", out, *RAY)
    wait_for_partitions(again, out, len(done) + 1)
    os.kill(next(actors_of(again.pid)), signal.SIGKILL)
    _, stderr = again.communicate(timeout=400)
    assert again.returncode == 3, stderr.decode()
    assert b"files already labeled" in stderr
    summary = json.loads(stderr.splitlines()[-1])
    labeled = [row for row in parquet_rows(local / "labels.parquet") if row["status"] != "skipped"]
    assert summary["images"] == len({(row["file"], row["frame"]) for row in labeled})

    for table in ("labels", "files"):
        assert parquet_rows(out / table) == parquet_rows(local / f"{table}.parquet")
    assert done.items() <= partitions(out).items(), "what was committed is not written again"
    assert {path.name for path in (out / "labels").iterdir()} == set(partitions(out))


def test_the_ray_engine_rejects_unsupported_options(
    mien: Mien, album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    refused = mien("label", album, "--out", out, "--engine", "ray", "--write", "csv,parquet")
    assert refused.exit_code == 1
    assert "writes only parquet, not csv" in refused.stderr
    assert "--limit" in mien("label", album, "--out", out, "--engine", "ray", "--limit", "3").stderr
    assert "--engine ray" in mien("label", album, "--out", out, "--ray-address", "auto").stderr
    monkeypatch.setattr(ray_engine.importlib.util, "find_spec", lambda _name: None)
    missing = mien("label", album, "--out", out, "--engine", "ray")
    assert missing.exit_code == 1
    assert "pip install 'ray[data]' pyarrow" in missing.stderr
    assert not (out / "labels").exists()


def test_a_missing_cluster_is_named(mien: Mien, tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", count=1)
    process = mien.start("label", photos, "--out", tmp_path / "out", "--engine", "ray", "--ray-address", "127.0.0.1:1")
    _, stderr = process.communicate()
    assert process.returncode == 1
    assert "cannot reach the cluster at 127.0.0.1:1" in stderr.decode()
    assert "Traceback" not in stderr.decode()


def test_a_machine_without_the_folders_is_reported(tmp_path: Path) -> None:
    settings = Settings(device="cpu")
    answer = cluster.machine_facts(settings, str(tmp_path / "elsewhere"), "run", None)  # asked per machine
    assert "cannot find the output folder" in answer["problem"]
    (tmp_path / ".mien").mkdir()
    run = begin_run(tmp_path)
    answer = cluster.machine_facts(settings, str(tmp_path), run, str(tmp_path / "photos"))
    assert "cannot find the input" in answer["problem"]


def test_machines_that_differ_are_named_with_the_difference() -> None:
    found = {"10.0.0.1": {"model": "a", "detector": "yunet"}, "10.0.0.2": {"model": "a", "detector": "builtin"}}
    with pytest.raises(
        cluster.NotReady, match=r"10\.0\.0\.2 differs from 10\.0\.0\.1: detector builtin instead of yunet"
    ):
        cluster.agreed(found)


@pytest.mark.parametrize(("second", "common"), [("fp32", "fp32"), ("int8", "int8")])
def test_machines_run_in_fp32_if_only_some_gain_from_int8(second: str, common: str) -> None:
    found = {"a": {"model": "m", "precision": "int8"}, "b": {"model": "m", "precision": second}}
    assert cluster.agreed(cluster.same_precision(found)) == {"model": "m", "precision": common}
