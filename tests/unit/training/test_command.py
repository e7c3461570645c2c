"""Command line of trainings: exit status and one-line errors."""

from pathlib import Path

import pytest

from mien.training.command import INTERRUPTED, run_command
from mien.training.config import Recipe
from tests.support_training import small_recipe, write_recipe


def test_an_interrupted_training_says_how_to_resume_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def interrupted(_recipe: Recipe, _out: Path) -> Path:
        raise KeyboardInterrupt

    path = write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path))
    status = run_command("train", "Train.", Recipe, interrupted, [str(path)])
    assert status == INTERRUPTED == 130
    assert "rerun the same command to resume" in caplog.text
