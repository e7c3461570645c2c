"""Weights of a released artifact."""

from pathlib import Path
from unittest.mock import Mock

import pytest
from safetensors import SafetensorError
from torch import nn

from mien.training.release import weights


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = SafetensorError("I/O error: No space left on device (os error 28)")
    monkeypatch.setattr(weights, "save_file", Mock(side_effect=full))
    with pytest.raises(OSError, match=r"model\.safetensors: I/O error: No space left"):
        weights.save_weights(nn.Linear(2, 2), tmp_path)
