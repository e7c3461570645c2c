"""Checkpoints: atomic writes and damage."""

import errno
from pathlib import Path

import pytest
import torch

from mien.training.run import LAST, RunError, load, save


def state(step: int) -> dict[str, object]:
    return {"step": step, "weights": {"w": torch.arange(20_000, dtype=torch.float32) + step}}


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    last = tmp_path / LAST
    save(last, state(3))
    assert load(last)["step"] == 3
    content = last.read_bytes()
    middle = len(content) // 2
    for damaged in (content[:middle], content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :], b""):
        last.write_bytes(damaged)
        with pytest.raises(RunError, match=r"last\.pt: (damaged|cannot be read)"):
            load(last)


def test_a_full_disk_is_a_clear_error_and_the_checkpoint_before_it_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = tmp_path / LAST
    save(last, state(1))

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match=r"No space left on device.*unchanged"):
        save(last, state(2))
    assert load(last)["step"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [LAST]
