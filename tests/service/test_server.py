"""The start of the server: settings and what prevents it, ports, and the environment of worker processes."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from mien.app.cli.serve import serve
from mien.app.errors import SettingsError
from mien.app.inference.classifier import CPU, CUDA
from mien.app.service import start
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
        ({"MIEN_HOST": ""}, {}, "MIEN_HOST='': .*empty"),
        ({"MIEN_WORKERS": "many"}, {}, "MIEN_WORKERS='many': .*integer"),
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


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Settings of what the server starts, with a model that is not opened, and without an effect on this process."""
    started: list[Settings] = []
    monkeypatch.setattr(start, "open_labeler", lambda _: Mock(**{"classifier.provider": CPU}))
    for name in ("serve", "_run_workers"):
        monkeypatch.setattr(start, name, lambda settings, *_: started.append(settings))
    monkeypatch.setattr(start.logging.config, "dictConfig", lambda _: None)
    monkeypatch.setattr(start.signal, "signal", lambda *_: None)
    monkeypatch.setattr(start.webbrowser, "open", Mock(side_effect=AssertionError("a browser was opened")))
    return started


def test_options_of_the_command_line_override_the_environment(
    started: list[Settings], environment: dict[str, str], tmp_path: Path
) -> None:
    environment |= {
        "MIEN_MIN_FACE_PX": "20",
        "MIEN_PORT": "1",
        "MIEN_ALLOWED_HOSTS": "a.example, ",
        "MIEN_DATA_DIR": "x",
    }
    serve(port=0, workers=2, model=str(tmp_path))
    (chosen,) = started
    assert (chosen.port, chosen.workers, chosen.model, chosen.min_face_px) == (0, 2, str(tmp_path), 20)
    assert chosen.allowed_hosts == ("a.example",)


def test_an_error_before_the_start_is_a_json_line_if_the_log_is(environment: dict[str, str]) -> None:
    environment |= {"MIEN_LOG_FORMAT": "json", "MIEN_NOPE": "1"}
    command = [sys.executable, "-m", "mien", "serve"]
    done = subprocess.run(command, env=environment, timeout=60, check=False, capture_output=True, text=True)
    line = json.loads(done.stderr)
    assert (done.returncode, line["level"], line["message"][:9]) == (1, "critical", "MIEN_NOPE")


def test_there_is_one_process_per_two_cores_with_enough_memory_and_one_on_a_gpu(
    started: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = [(1, 8, CPU), (3, 8, CPU), (4, 8, CPU), (16, 64, CPU), (16, 64, CUDA), (16, 5, CPU), (16, 1, CPU)]
    for cores, gigabytes, provider in cases:
        monkeypatch.setattr(start, "cores", lambda found=cores: found)
        monkeypatch.setattr(start, "free_bytes", lambda found=gigabytes: found * 10**9)
        monkeypatch.setattr(start, "open_labeler", lambda _, found=provider: Mock(**{"classifier.provider": found}))
        start.run(load_settings(port=0, workers="auto"))
    assert [settings.workers or 1 for settings in started] == [1, 1, 2, 8, 1, 4, 1]


def test_the_page_is_served_locally_and_a_used_port_is_avoided(started: list[Settings]) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:  # noqa: S104  # must not be taken over
        port = int(taken.getsockname()[1])
        busy = Settings().model_copy(update={"port": port, "host": "0.0.0.0"})  # noqa: S104
        busy.model_fields_set.discard("port")
        start.serve_page(busy, browser=False)
        with pytest.raises(SettingsError, match=f"127.0.0.1, port {port}: .*Choose another address or port"):
            start.serve_page(Settings(port=port), browser=False)
    assert [(settings.host, settings.workers) for settings in started] == [("127.0.0.1", 1)]


def test_every_host_is_ipv4_and_ipv6_and_a_name_may_have_either(monkeypatch: pytest.MonkeyPatch) -> None:
    with start.listen(Settings(host="*", port=0)) as listener:
        for host in ("127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])):
            socket.create_connection((host, listener.getsockname()[1]), timeout=5).close()
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0))
    for found, address in (([six], "::1"), ([six, four], "127.0.0.1")):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found, **__: found)
        with start.listen(Settings(host="mien.example", port=0)) as listener:
            assert listener.getsockname()[0] == address


def test_workers_that_cannot_start_end_the_service() -> None:
    program = (
        "from mien.app.service import start; from mien.app.settings import Settings;"
        "chosen = Settings(model='no/such', workers=2, port=0); start._run_workers(chosen, start.listen(chosen))"
    )
    assert subprocess.run([sys.executable, "-c", program], env=os.environ, timeout=60, check=False).returncode == 1
