"""API keys from a file: names, rotation without a restart, and quotas."""

import logging
from pathlib import Path

import pytest
from fastapi import WebSocketDisconnect
from fastapi.testclient import TestClient

from mien.app.errors import SettingsError
from mien.app.service import keys
from mien.app.service.keys import key_hash
from tests.support import encoded, gradient_image
from tests.unit.app.conftest import Connect

PHOTO = encoded(gradient_image(1000, 1000), "JPEG")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(keys, "_REREAD_S", 0.0)
    return write(tmp_path / "keys.toml", web=("first",))


def write(path: Path, quotas: str = "", **names: tuple[str, ...]) -> Path:
    """Replace the file, as an orchestrator does that mounts a secret."""
    tables = [f"[{name}]\nsha256 = {[key_hash(key) for key in given]}\n{quotas}" for name, given in names.items()]
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


@pytest.mark.parametrize("text", [None, "[a b]\n", "[web]\nsha256 = ['x']", "[web]\nsha256 = []", "[web]\nquota = 1"])
def test_a_file_that_cannot_be_read_prevents_the_start(connect: Connect, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(SettingsError, match=r"keys\.toml"):
        connect(api_keys_file=tmp_path / "keys.toml")


@pytest.mark.parametrize(
    ("quota", "unit"), [("requests_per_minute = 3", "requests"), ("megapixels_per_minute = 2.5", "megapixels")]
)
def test_a_quota_holds_for_each_name_and_says_when_to_retry(
    connect: Connect, file: Path, monkeypatch: pytest.MonkeyPatch, quota: str, unit: str
) -> None:
    now_s = 1000.0
    monkeypatch.setattr(keys.time, "monotonic", lambda: now_s)
    write(file, quota, web=("first",), app=("other",))
    client = connect(api_keys_file=file, metrics_without_key=True)
    assert [post(client, "first") for _ in range(4)] == [200, 200, 200, 429]
    assert post(client, "other") == 200, "another name has its own quota"
    refused = client.post(
        "/v1/expressions", content=PHOTO, headers={"content-type": "image/jpeg", "x-api-key": "first"}
    )
    assert refused.json()["type"] == "urn:mien:problem:quota-exceeded"
    assert unit in refused.json()["detail"]
    wait_s = int(refused.headers["retry-after"])
    assert 10 <= wait_s <= 20
    assert client.get("/v1/models", headers={"x-api-key": "first"}).status_code == 200, "only images count"
    now_s += wait_s
    assert post(client, "first") == 200
    text = client.get("/metrics").text
    assert 'mien_key_requests_total{key="web",status="429"} 2.0' in text
    assert 'mien_key_megapixels_total{key="web"} 4.0' in text
    assert key_hash("first")[:8] not in text


def test_a_quota_counts_pixels_and_not_the_memory_that_their_format_takes(connect: Connect, file: Path) -> None:
    write(file, web=("first",))
    client = connect(api_keys_file=file, metrics_without_key=True)
    photo, headers = encoded(gradient_image(1000, 1000), "WEBP"), {"content-type": "image/webp", "x-api-key": "first"}
    assert client.post("/v1/expressions", content=photo, headers=headers).status_code == 200
    assert 'mien_key_megapixels_total{key="web"} 1.0' in client.get("/metrics").text


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


def test_frames_of_a_stream_use_the_quota(connect: Connect, file: Path) -> None:
    write(file, "requests_per_minute = 2", web=("first",))
    client = connect(api_keys_file=file)
    with client.websocket_connect("/v1/stream", headers={"x-api-key": "first"}) as stream:
        errors = []
        for _ in range(3):
            stream.send_bytes(PHOTO)
            errors.append(stream.receive_json()["error"])
    assert errors[:2] == [None, None]
    assert errors[2]["status"] == 429
