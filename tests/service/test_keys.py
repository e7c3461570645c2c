"""API keys with names, from a file."""

from pathlib import Path

import pytest

from mien.app.errors import SettingsError
from mien.app.service.keys import key_hash
from tests.support.app import PHOTO, Connect


def test_keys_of_a_file_and_of_the_settings_are_accepted(connect: Connect, tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f"[web]\nsha256 = {[key_hash('first'), key_hash('second')]}\n[app]\nsha256 = {[key_hash('third')]}")
    client = connect(api_keys_file=file, api_key_sha256=key_hash("fixed"))
    for key, status in {"first": 200, "second": 200, "third": 200, "fixed": 200, "other": 401}.items():
        headers = {"content-type": "image/jpeg", "x-api-key": key}
        assert client.post("/v1/expressions", content=PHOTO, headers=headers).status_code == status
    metrics = client.get("/metrics", headers={"x-api-key": "fixed"}).text
    assert 'mien_key_requests_total{key="web",status="200"} 2.0' in metrics


@pytest.mark.parametrize("text", [None, "[web]\nsha256 = ['x']", "[web]\nsha256 = []"])
def test_a_file_that_cannot_be_read_prevents_the_start(connect: Connect, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(SettingsError, match=r"keys\.toml"):
        connect(api_keys_file=tmp_path / "keys.toml")
