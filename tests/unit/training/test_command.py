"""Command line of trainings: exit status, usage errors and one-line errors."""

import errno
from pathlib import Path

import pytest

from mien.training.arguments import parse
from mien.training.command import INTERRUPTED, recipe_command
from mien.training.config import Recipe
from tests.support_training import small_recipe, write_recipe


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("cross-validate recipe.yaml --folds 1", "expected at least 2"),
        ("experiment file.yaml --seeds 0", "expected at least 1"),
        ("experiment file.yaml --plot figure.xls", "ends with .png or .svg"),
        ("evaluate --artifact a --data ferplus", "expected KIND=ROOT"),
        ("report run --option classes", "expected KEY=VALUE"),
    ],
)
def test_an_invalid_argument_is_explained(command: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *arguments = command.split()
    with pytest.raises(SystemExit):
        parse(name, arguments)
    assert complaint in capsys.readouterr().err


def test_an_error_of_the_system_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def without_space(_recipe: Recipe, out: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(out / "metrics.jsonl"))

    path = write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path))
    assert recipe_command("train", Recipe, without_space)([str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: [Errno 28] No space left on device: ")


def test_an_interrupted_training_says_how_to_resume_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(_recipe: Recipe, _out: Path) -> Path:
        raise KeyboardInterrupt

    path = write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path))
    status = recipe_command("train", Recipe, interrupted)([str(path)])
    assert status == INTERRUPTED == 130
    assert "rerun the same command to resume" in capsys.readouterr().err
