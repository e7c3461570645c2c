"""Command line of trainings: exit status and one-line errors."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from training.command import INTERRUPTED, run_command


def test_an_interrupted_training_says_how_to_resume_it(caplog: pytest.LogCaptureFixture) -> None:
    def interrupted(_recipe: SimpleNamespace, _out: Path) -> Path:
        raise KeyboardInterrupt

    recipe = SimpleNamespace(name="run")
    status = run_command("train", "Train.", lambda _path, _overrides: recipe, interrupted, ["recipe.yaml"])
    assert status == INTERRUPTED == 130
    assert "rerun the same command to resume" in caplog.text
