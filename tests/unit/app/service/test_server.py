"""Options of the uvicorn server, and environment of its worker processes."""

import multiprocessing
import os
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvicorn
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import multiprocess

from mien.app.errors import SettingsError, StartupError
from mien.app.inference.detect import weights
from mien.app.inference.runtime.sessions import CPU
from mien.app.service import server
from mien.app.settings import Settings


def pipeline(precision: str = "fp32", graphs: tuple[str, ...] = ("fp32",)) -> SimpleNamespace:
    manifest = SimpleNamespace(graphs=graphs)
    return SimpleNamespace(classifier=SimpleNamespace(precision=precision, provider=CPU, manifest=manifest))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server starts, with one model that is not opened, and without an effect on this process."""
    started: list[str] = []

    def workers(_: object, sockets: list[socket.socket]) -> SimpleNamespace:
        return SimpleNamespace(run=lambda: (started.append("workers"), sockets[0].close()))

    monkeypatch.setattr(server, "build_pipelines", lambda _: {"fast": pipeline()})
    monkeypatch.setattr(server, "Workers", workers)
    monkeypatch.setattr(server.uvicorn, "run", lambda *_, **__: started.append("one"))
    monkeypatch.setattr(server.logging.config, "dictConfig", lambda _: None)
    monkeypatch.setattr(server.signal, "signal", lambda *_: None)
    monkeypatch.setattr(server.os, "environ", dict(os.environ))
    return started


@pytest.mark.parametrize(
    ("graphs", "expected"), [(("fp32", "int8"), "int8"), (("fp32",), None)], ids=["all have it", "one lacks it"]
)
def test_worker_processes_keep_the_precision_that_their_parent_measured_if_all_models_have_it(
    started: list[str], monkeypatch: pytest.MonkeyPatch, graphs: tuple[str, ...], expected: str | None
) -> None:
    pipelines = {"fast": pipeline("int8", ("fp32", "int8")), "mine": pipeline(graphs[-1], graphs)}
    monkeypatch.setattr(server, "build_pipelines", lambda _: pipelines)
    server.run(Settings(workers=2, port=0))
    assert server.os.environ.get("MIEN_PRECISION") == expected
    assert started == ["workers"]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("setting", ["jobs_dir", "api_keys_file", "tracing"])
def test_a_setting_that_no_worker_could_use_prevents_the_start(
    started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, setting: str
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)  # as without the packages for tracing
    (tmp_path / "file").touch()
    value = True if setting == "tracing" else tmp_path / "file" / "below"
    with pytest.raises(StartupError, match=r"extra `trace`" if setting == "tracing" else "below"):
        server.run(Settings(workers=workers, port=0, **{setting: value}))  # type: ignore[arg-type]
    assert not started


@pytest.mark.parametrize("host", ["127.0.0.1:80", "http://localhost"])
def test_a_host_with_more_than_its_name_prevents_the_start(host: str) -> None:
    with pytest.raises(SettingsError, match=f"MIEN_HOST={host}"):
        server.run(Settings(host=host))


def test_workers_do_not_start_without_room_for_their_counters(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server.shutil, "disk_usage", lambda _: SimpleNamespace(free=8_192))
    with pytest.raises(SettingsError, match="8,192 bytes are free"):
        server.run(Settings(workers=2, port=0))
    assert not started


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(("detector", "warnings"), [("auto", 1), ("builtin", 0)])
def test_a_folder_without_yunet_is_a_warning_of_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, detector: str, warnings: int
) -> None:
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path)
    server.run(Settings(models_dir=tmp_path, detector=detector))
    assert [str(tmp_path) in record.message for record in caplog.records] == [True] * warnings


def _end_on_ping(connection: Connection) -> None:
    connection.recv()
    os._exit(STARTUP_FAILURE)


def test_a_worker_that_dies_during_its_health_check_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocess.signal, "signal", lambda *_: None)
    config = uvicorn.Config("unused:app", timeout_worker_healthcheck=60)
    worker = multiprocess.Process(config, [])
    worker.process = multiprocessing.get_context("spawn").Process(target=_end_on_ping, args=(worker.child_conn,))
    worker.start()
    workers = server.Workers(config, [])
    workers.processes = [worker]
    started = time.monotonic()
    workers.keep_subprocess_alive()
    assert workers.should_exit.is_set()
    assert time.monotonic() - started < 40
