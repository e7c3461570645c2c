"""Command line of trainings: exit status, usage errors and one-line errors."""

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest

from mien.training.cli import main
from tests.support import ROOT
from tests.support_training import small_recipe, write_recipe


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("train", str(ROOT / "training" / "recipes")),
        ("cross-validate recipe.yaml --folds 1", "greater than or equal to 2"),
        ("experiment file.yaml --seeds 0", "greater than or equal to 1"),
        ("experiment file.yaml --plot figure.xls", "ends with .png or .svg or .pdf"),
        ("evaluate --artifact a --data ferplus", "expected KIND=ROOT"),
        ("report run --option classes", "expected KEY=VALUE"),
        ("detector export run --tag mine --threshold 1.5", "expected a number between 0 and 1"),
    ],
)
def test_an_invalid_argument_is_explained(
    arguments: str, complaint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert main(arguments.split()) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl"), 1, "error: [Errno 28] No space left on "),
        (KeyboardInterrupt(), 130, "interrupted; rerun the same command to resume"),
    ],
)
def test_an_error_of_the_system_and_an_interruption_are_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    status: int,
    message: str,
) -> None:
    path = write_recipe(tmp_path / "recipe.yaml", small_recipe(tmp_path))
    monkeypatch.setattr("mien.training.train.train", Mock(side_effect=error))
    assert main(["train", str(path)]) == status
    assert capsys.readouterr().err.startswith(message)
