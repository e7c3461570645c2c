"""API keys from a file: names, and rotation without a restart."""

import logging
from pathlib import Path

import pytest
from fastapi import WebSocketDisconnect
from fastapi.testclient import TestClient

from mien.app.errors import SettingsError
from mien.app.service import keys
from mien.app.service.keys import key_hash
from tests.support.app import PHOTO, Connect


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(keys, "_REREAD_S", 0.0)
    return write(tmp_path / "keys.toml", web=("first",))


def write(path: Path, **names: tuple[str, ...]) -> Path:
    """Replace the file, as an orchestrator does that mounts a secret."""
    tables = [f"[{name}]\nsha256 = {[key_hash(key) for key in given]}" for name, given in names.items()]
    new = path.with_suffix(".new")
    new.write_text("\n".join(tables), encoding="utf-8")
    new.replace(path)
    return path


def post(client: TestClient, key: str) -> int:
    headers = {"content-type": "image/jpeg", "x-api-key": key}
    return client.post("/v1/expressions", content=PHOTO, headers=headers).status_code


def test_keys_change_without_a_restart_and_a_broken_file_changes_nothing(
    connect: Connect, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(api_keys_file=file, api_key_sha256=key_hash("fixed"))
    assert [post(client, key) for key in ("first", "second", "fixed")] == [200, 401, 200]
    write(file, web=("first", "second"))
    assert [post(client, key) for key in ("first", "second")] == [200, 200]
    write(file, web=("second",), app=("third",))
    assert [post(client, key) for key in ("first", "second", "third", "fixed")] == [401, 200, 200, 200]
    for broken in ("[web]\nsha256 = 'abc'", "[[", None):
        file.unlink() if broken is None else file.write_text(broken)
        with caplog.at_level(logging.ERROR, logger=keys.__name__):
            assert [post(client, key) for key in ("second", "first")] == [200, 401]
        assert str(file) in caplog.text
        caplog.clear()


@pytest.mark.parametrize("text", [None, "[web]\nsha256 = ['x']", "[web]\nsha256 = []"])
def test_a_file_that_cannot_be_read_prevents_the_start(connect: Connect, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(SettingsError, match=r"keys\.toml"):
        connect(api_keys_file=tmp_path / "keys.toml")


def test_a_stream_ends_when_its_key_is_removed(connect: Connect, file: Path) -> None:
    client = connect(api_keys_file=file)
    with client.websocket_connect("/v1/stream", headers={"x-api-key": "first"}) as stream:
        for given in (("first",), ("first", "second")):
            write(file, web=given)
            stream.send_bytes(PHOTO)
            assert stream.receive_json()["error"] is None
        write(file, web=("second",))
        stream.send_bytes(PHOTO)
        with pytest.raises(WebSocketDisconnect) as closed:
            stream.receive_json()
    assert closed.value.code == 1008
