"""Checkpoints: atomic writes, damage and resuming."""

from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from mien.training import checkpoint


def state(step: int) -> dict[str, object]:
    return {"step": step, "weights": {"w": torch.arange(20_000, dtype=torch.float32) + step}}


def test_a_damaged_checkpoint_is_named_and_the_previous_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert checkpoint.read_newest(tmp_path) is None
    for step in (1, 2, 3):
        checkpoint.save_last(tmp_path, state(step))
    assert checkpoint.read_newest(tmp_path)["step"] == 3
    last = tmp_path / checkpoint.LAST
    content = last.read_bytes()
    middle = len(content) // 2
    for damaged in (content[:middle], content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :], b""):
        last.write_bytes(damaged)
        assert checkpoint.read_newest(tmp_path)["step"] == 2
        assert "last.pt" in caplog.text
        caplog.clear()
    (tmp_path / checkpoint.PREVIOUS).write_bytes(b"rubbish")
    with pytest.raises(checkpoint.CheckpointError, match="no checkpoint can be resumed"):
        checkpoint.read_newest(tmp_path)


def test_a_full_disk_is_a_clear_error_and_the_previous_checkpoint_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save_last(tmp_path, state(1))
    error = RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598")
    monkeypatch.setattr(torch, "save", Mock(side_effect=error))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=20_000))
    with pytest.raises(checkpoint.CheckpointError, match=r"no space left on the disk.*unchanged"):
        checkpoint.save_last(tmp_path, state(2))
    assert checkpoint.read_newest(tmp_path)["step"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.pt"]
