"""The start of the server: what prevents it, ports, limits, and the environment of worker processes."""

import json
import os
import socket
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.background import free_port
from mien.app.errors import SettingsError, StartupError
from mien.app.inference.detect import weights
from mien.app.inference.labeler import Labeler, open_labelers
from mien.app.inference.runtime.sessions import CPU
from mien.app.service import local_page, server
from mien.app.settings import Settings
from tests.support import ROOT, environment_of


def pipeline(precision: str = "fp32", graphs: tuple[str, ...] = ("fp32",)) -> SimpleNamespace:
    manifest = SimpleNamespace(graphs=graphs)
    return SimpleNamespace(classifier=SimpleNamespace(precision=precision, provider=CPU, manifest=manifest))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server starts, with one model that is not opened, and without an effect on this process."""
    started: list[str] = []

    def workers(_: object, sockets: list[socket.socket]) -> SimpleNamespace:
        return SimpleNamespace(run=lambda: (started.append("workers"), sockets[0].close()))

    monkeypatch.setattr(server, "open_labelers", lambda _: {"fast": pipeline()})
    monkeypatch.setattr(server, "Workers", workers)
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda *_: started.append("one"))
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
    monkeypatch.setattr(server, "open_labelers", lambda _: pipelines)
    server.run(Settings(workers=2, port=0))
    assert server.os.environ.get("MIEN_PRECISION") == expected
    assert started == ["workers"]


def test_the_parent_of_worker_processes_keeps_no_model(
    started: list[str], monkeypatch: pytest.MonkeyPatch, artifact: Path
) -> None:
    opened = list[weakref.ref[object]]()
    kept = list[object]()

    def opening(settings: Settings) -> dict[str, Labeler]:
        labelers = open_labelers(settings)
        opened.extend(weakref.ref(labeler.classifier) for labeler in labelers.values())
        return labelers

    monkeypatch.setattr(server, "open_labelers", opening)
    monkeypatch.setattr(server, "_run_workers", lambda *_: kept.extend(reference() for reference in opened))
    server.run(Settings(model=artifact, device="cpu", workers=2, port=0))
    assert kept == [None]


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


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(("detector", "warnings"), [("auto", 1), ("builtin", 0)])
def test_a_folder_without_yunet_is_a_warning_of_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, detector: str, warnings: int
) -> None:
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path)
    server.run(Settings(models_dir=tmp_path, detector=detector, port=0))
    messages = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert [str(tmp_path) in message for message in messages] == [True] * warnings


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_in_use_ends_the_start_before_models_are_opened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    monkeypatch.setattr(server, "open_labelers", lambda _: pytest.fail("models are opened"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = f"MIEN_PORT={port}: Address already in use. Choose another port"
        with pytest.raises(SettingsError, match=message):
            server.run(Settings(port=port, workers=workers))
        with pytest.raises(SystemExit, match="1"):
            server.run(Settings(port=port, workers=workers, log_format="json"))
    (record,) = caplog.records
    assert (record.levelname, record.exc_info, message in record.message) == ("CRITICAL", None, True)


def test_a_wrong_setting_is_json_if_the_log_is() -> None:
    variables = environment_of(prior="wrong", log_format="json") | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mien", "serve"]
    ended = subprocess.run(command, env=variables, capture_output=True, check=False, timeout=60)
    error = json.loads(ended.stderr)
    assert (ended.returncode, error["level"]) == (1, "critical")
    assert error["message"].startswith("MIEN_PRIOR='wrong': ")


def test_other_packages_log_in_the_format_of_the_service(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import logging.config, sys; from mien.app.service.logs import log_config; "
    code += "logging.config.dictConfig(log_config('json')); logging.getLogger('opentelemetry.x').error('not exported')"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert json.loads(capfd.readouterr().err)["message"] == "not exported"


def test_clients_are_refused_until_the_models_are_open(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()

    def build(_: Settings) -> dict[str, SimpleNamespace]:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        return {"fast": pipeline()}

    monkeypatch.setattr(server, "open_labelers", build)
    server.run(Settings(port=port))
    assert started == ["one"]


@pytest.mark.parametrize(("hard", "limit", "warnings"), [(4096, 1536, 0), (1200, 1200, 1)])
@pytest.mark.usefixtures("started")
def test_the_limit_of_open_files_is_raised_for_all_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, hard: int, limit: int, warnings: int
) -> None:
    resource = pytest.importorskip("resource")
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    server.run(Settings(port=0, max_connections=1024))
    assert limits == [(limit, hard)]
    assert caplog.text.count("ulimit") == warnings


def test_the_page_is_served_locally_and_a_used_port_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []
    opened: list[str] = []
    monkeypatch.setattr("mien.app.service.server.run", served.append)
    monkeypatch.setattr(local_page, "_open_when_ready", lambda address, browser: opened.append(f"{address} {browser}"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = int(taken.getsockname()[1])
        with pytest.raises(StartupError, match=f"MIEN_PORT={port}"):
            local_page.serve_page(Settings(port=port), browser=True)
        busy = Settings().model_copy(update={"port": port, "host": "0.0.0.0"})  # noqa: S104  # must not be taken over
        busy.model_fields_set.discard("port")
        local_page.serve_page(busy, browser=True)
    (chosen,) = served
    assert chosen.host == "127.0.0.1"
    assert chosen.port not in {0, port}
    assert opened == [f"http://127.0.0.1:{chosen.port}/ True"]
