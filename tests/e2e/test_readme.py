"""Commands of the README and of make, in a copy of the working tree in a folder with a space."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from mien.data.contract import LABELS
from mien.models.manifest import artifact_dir
from tests.support import ROOT, code_blocks, environment_of, output_of
from tests.support.serving import serving

SERVED_AT = "127.0.0.1:8000"
DIRECTORIES = ("app", "benchmarks", "data", "mien", "models", "requirements", "samples", "training")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the working tree whose `.venv` uses the interpreter of the tests."""
    for program in ("make", "curl"):
        if not shutil.which(program):
            pytest.skip(f"the README's commands need {program}, which is not installed here")
    folder = tmp_path_factory.mktemp("e2e") / "my mien"
    folder.mkdir()
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in DIRECTORIES:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy2(ROOT / name, folder)
    (folder / ".venv" / "bin").mkdir(parents=True)
    for program, arguments in {"python": "", "mien": "-m mien"}.items():
        script = folder / ".venv" / "bin" / program
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    (folder / ".venv" / ".installed").touch()
    return folder


@pytest.fixture(scope="module")
def new_user(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a new user, with the detector file if the tests have it."""
    environment = environment_of(device="cpu", models_dir=os.environ.get("MIEN_MODELS_DIR"))
    return environment | {"HOME": str(tmp_path_factory.mktemp("home")), "LANG": "C.UTF-8"}


def _run(language: str, text: str, *, cwd: Path, env: dict[str, str]) -> str:
    command = {"sh": ["sh", "-eu", "-c", text], "python": [sys.executable, "-c", text]}[language]
    return output_of(*command, cwd=cwd, env=env, timeout=250)


@pytest.mark.parametrize(("language", "text"), code_blocks("README.md", "test"))
def test_commands_run(language: str, text: str, clone: Path, new_user: dict[str, str]) -> None:
    _run(language, text, cwd=clone, env=new_user)


def test_requests_succeed(clone: Path, new_user: dict[str, str], tmp_path: Path) -> None:
    with serving(tmp_path, artifact_dir(None)) as service:
        for language, text in code_blocks("README.md", "test-with-service"):
            assert SERVED_AT in text
            said = _run(language, text.replace(SERVED_AT, f"127.0.0.1:{service.port}"), cwd=clone, env=new_user)
            assert any(label in said for label in LABELS), said


@pytest.mark.parametrize("setting", ["PHOTOS", "OUT", "SITE"])
def test_an_empty_folder_of_make_is_not_the_current_one(setting: str, clone: Path) -> None:
    with pytest.raises(AssertionError, match=f"{setting} is empty"):
        output_of("make", "-n", "page" if setting == "SITE" else "label", f"{setting}=", cwd=clone)


def test_changes_to_the_recipe_reach_training(clone: Path) -> None:
    changes = ["epochs=3", "optim.learning_rate=3e-4"]
    printed = output_of("make", "-n", "train", "RECIPE=training/recipes/ferplus_teacher.yaml", *changes, cwd=clone)
    command = next(line for line in printed.splitlines() if "-m mien train" in line)
    assert all(change in command.split() for change in changes)
    assert "RECIPE=" not in command
