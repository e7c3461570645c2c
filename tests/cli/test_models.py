"""`mien models pull --optional`: one attempt, no error, one line on the detector in use."""

import hashlib
from pathlib import Path
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

from mien.app.cli.program import app
from mien.app.inference.detect import weights


@pytest.fixture(autouse=True)
def no_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user cache without YuNet's file, and an address that refuses connections."""
    monkeypatch.setattr(weights, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setattr(weights, "YUNET_URL", "http://127.0.0.1:9/none")
    monkeypatch.delenv("MIEN_MODELS_DIR", raising=False)


def pull(*arguments: str | Path, code: int = 0) -> str:
    """Its only line."""
    done = CliRunner().invoke(app, ["models", "pull", *map(str, arguments)])
    assert done.exit_code == code
    (line,) = done.output.splitlines()
    return line


def test_without_a_network_the_detector_in_the_clone_is_named_within_three_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = Mock(side_effect=TimeoutError("no response"))
    monkeypatch.setattr(weights, "_connect", connect)
    line = pull("--optional")
    assert line.startswith("Detector: ")
    assert not line.startswith("Detector: yunet")
    assert "`mien models pull` tries again" in line
    connect.assert_called_once_with(weights.YUNET_URL, 3.0)


def test_an_existing_file_is_used_without_a_connection_and_otherwise_a_failure_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(weights, "YUNET_SHA256", hashlib.sha256(b"network").hexdigest())
    assert "MIEN_MODELS_DIR" in pull(code=1)
    (tmp_path / weights.YUNET_FILE).write_bytes(b"network")
    expected = f"Detector: yunet (verified file {tmp_path / weights.YUNET_FILE})"
    assert pull("--optional", "--to", tmp_path) == expected
