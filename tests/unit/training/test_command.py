"""Command line of trainings: exit status, usage errors and one-line errors."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest

from mien.training.arguments import parse
from mien.training.command import recipe_command
from mien.training.config import Recipe
from tests.support import ROOT
from tests.support_training import small_recipe, write_recipe


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("train", "", str(ROOT / "training" / "recipes")),
        ("cross-validate", "recipe.yaml --folds 1", "expected at least 2"),
        ("experiment", "file.yaml --seeds 0", "expected at least 1"),
        ("experiment", "file.yaml --plot figure.xls", "ends with .png or .svg or .pdf"),
        ("evaluate", "--artifact a --data ferplus", "expected KIND=ROOT"),
        ("report", "run --option classes", "expected KEY=VALUE"),
        ("detector export", "run --tag mine --threshold 1.5", "expected a number between 0 and 1"),
    ],
)
def test_an_invalid_argument_is_explained(
    name: str, arguments: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(name, arguments.split())
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"), 1, "error: [Errno 28] No space left on "),
        (KeyboardInterrupt(), 130, "interrupted; rerun the same command to resume"),
    ],
)
def test_an_error_of_the_system_and_an_interruption_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, message: str
) -> None:
    path = write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path))
    assert recipe_command("train", Recipe, Mock(side_effect=error))([str(path)]) == status
    assert capsys.readouterr().err.startswith(message)
