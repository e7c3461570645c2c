"""The start of the server: settings and what prevents it, ports, and the environment of worker processes."""

import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mien.app.errors import SettingsError, StartupError
from mien.app.inference.detect import weights
from mien.app.inference.runtime.sessions import CPU
from mien.app.service import local_page, server
from mien.app.settings import Settings, load_settings
from tests.support import environment_of

KEY = "ab" * 32


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Variables of this test, without those of Mien."""
    monkeypatch.setattr(os, "environ", environment_of())
    return os.environ


@pytest.mark.parametrize(
    ("variables", "arguments", "message"),
    [
        ({"MIEN_API_KEYS_SHA256": "1"}, {}, "MIEN_API_KEYS_SHA256: unknown setting. Did you mean MIEN_API_KEY_SHA256"),
        ({"mien_prot": "1"}, {}, "mien_prot: unknown setting. Did you mean MIEN_PORT"),
        ({"MIEN_API_KEY_SHA256": f"{KEY},secret"}, {}, "MIEN_API_KEY_SHA256: expected the SHA-256 of each key"),
        ({"MIEN_API_KEYS_FILE": ""}, {}, "MIEN_API_KEYS_FILE='': .*empty"),
        ({"MIEN_DEVICE": "cuda"}, {"device": "gpu"}, "device='gpu': .*'cpu' or 'cuda'"),
        ({}, {"min_fac_px": 24}, "min_fac_px: unknown setting. Did you mean min_face_px"),
        ({}, {"cors_origins": "https://App.example"}, "cors_origins=.*: .*expected origins "),
        ({}, {"cors_origins": "https://app.example/"}, "cors_origins=.*: .*expected origins "),
        ({}, {"allowed_hosts": "mien.example:8443"}, "allowed_hosts=.*: .*expected host names "),
    ],
)
def test_a_wrong_setting_prevents_the_start_and_is_named_as_it_was_given(
    environment: dict[str, str], variables: dict[str, str], arguments: dict[str, Any], message: str
) -> None:
    environment.update(variables)
    with pytest.raises(SettingsError, match=f"^{message}") as error:
        load_settings(**arguments)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("model", [None, "runs/mine"])
def test_workers_get_every_option_despite_a_variable(
    environment: dict[str, str], tmp_path: Path, model: str | None
) -> None:
    environment |= {"MIEN_DEVICE": "cuda", "MIEN_MODEL": "another", "MIEN_DATA_DIR": "sets"}  # the last is of training
    chosen = Settings(
        device="auto", model=model, models_dir=tmp_path, cors_origins="https://a.example,https://b.example",
        detect_rotated=False, detection_threshold=0.5, api_key_sha256=KEY,
    )  # fmt: skip
    server._export(chosen)
    assert load_settings() == chosen
    assert os.environ.get("MIEN_MODEL") == model


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server starts, with one model that is not opened, and without an effect on this process."""
    started: list[str] = []
    classifier = SimpleNamespace(precision="int8", provider=CPU, manifest=SimpleNamespace(graphs=("fp32", "int8")))

    def workers(_: object, sockets: list[socket.socket]) -> SimpleNamespace:
        return SimpleNamespace(run=lambda: (started.append("workers"), sockets[0].close()))

    monkeypatch.setattr(server, "open_labelers", lambda _: {"fast": SimpleNamespace(classifier=classifier)})
    monkeypatch.setattr(server, "Workers", workers)
    monkeypatch.setattr(server.uvicorn.Server, "run", lambda *_: started.append("one"))
    monkeypatch.setattr(server.logging.config, "dictConfig", lambda _: None)
    monkeypatch.setattr(server.signal, "signal", lambda *_: None)
    return started


def test_worker_processes_keep_the_precision_that_their_parent_measured(started: list[str]) -> None:
    server.run(Settings(workers=2, port=0))
    assert server.os.environ.get("MIEN_PRECISION") == "int8"
    assert started == ["workers"]


@pytest.mark.parametrize("setting", ["api_keys_file", "tracing"])
def test_a_setting_that_no_worker_could_use_prevents_the_start(
    started: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)  # as without the packages for tracing
    (tmp_path / "file").touch()
    value = True if setting == "tracing" else tmp_path / "file" / "below"
    with pytest.raises(StartupError, match=r"extra `trace`" if setting == "tracing" else "below"):
        server.run(Settings(workers=2, port=0, **{setting: value}))  # type: ignore[arg-type]
    assert not started


@pytest.mark.usefixtures("started")
def test_a_folder_without_yunet_is_a_warning_of_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path)
    server.run(Settings(models_dir=tmp_path, port=0))
    (warning,) = (record.message for record in caplog.records if record.levelname == "WARNING")
    assert str(tmp_path) in warning


@pytest.mark.usefixtures("started")
def test_a_port_in_use_ends_the_start_before_models_are_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "open_labelers", lambda _: pytest.fail("models are opened"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=f"MIEN_PORT={port}: Address already in use"):
            server.run(Settings(port=port))


@pytest.mark.usefixtures("started")
def test_the_limit_of_open_files_is_raised_for_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    server.run(Settings(port=0, max_connections=1024))
    assert limits == [(1536, 4096)]


def test_the_page_is_served_locally_and_a_used_port_is_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Settings] = []
    monkeypatch.setattr("mien.app.service.server.run", served.append)
    monkeypatch.setattr(local_page, "_open_when_ready", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        busy = Settings().model_copy(update={"port": port, "host": "0.0.0.0"})  # noqa: S104  # must not be taken over
        busy.model_fields_set.discard("port")
        local_page.serve_page(busy, browser=True)
    (chosen,) = served
    assert chosen.host == "127.0.0.1"
    assert chosen.port not in {0, port}
