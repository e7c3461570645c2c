"""First use of make: help, a missing Python, a missing model, unusual folders."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")


def _make(*arguments: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=250, check=False)


def _only_tools(folder: Path, *, python: str | None) -> str:
    """A PATH with the tools of `make`, and a `python3` that reports the given version."""
    for tool in ("sh", "make", "dirname", "touch", "test", "ls"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    if python is not None:
        script = folder / "python3"
        script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {python}"\nexit 1\n', encoding="utf-8")
        script.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(("found", "message"), [(None, "no python3"), ("3.10.13", "Python 3.10.13")])
def test_a_missing_python_is_reported(
    found: str | None, message: str, clone: Path, tmp_path: Path, empty_home: dict[str, str]
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    env = empty_home | {"PATH": _only_tools(tools, python=found), "ENV_SERVE": "another-environment"}
    result = _make("label", cwd=clone, env=env)
    assert result.returncode != 0
    assert "Python 3.11 or later is needed" in result.stderr
    assert message in result.stderr
    assert not (clone / "another-environment").exists()


@pytest.mark.parametrize("setting", ["PHOTOS", "OUT", "SITE"])
def test_an_empty_folder_is_not_the_current_one(setting: str, clone: Path, empty_home: dict[str, str]) -> None:
    result = _make("-n", "page" if setting == "SITE" else "label", f"{setting}=", cwd=clone, env=empty_home)
    assert result.returncode != 0
    assert f"{setting} is empty" in result.stderr


def test_make_train_requires_a_recipe_before_installing(clone: Path, empty_home: dict[str, str]) -> None:
    result = _make("train", cwd=clone, env=empty_home)
    assert result.returncode != 0
    assert "make train RECIPE=" in result.stderr
    assert "training/recipes/ferplus_teacher.yaml" in result.stderr
    assert not (clone / ".venv-train").exists()


def test_changes_to_the_recipe_reach_training(clone: Path, empty_home: dict[str, str]) -> None:
    changes = ["epochs=3", "optim.learning_rate=3e-4"]
    result = _make("-n", "train", "RECIPE=training/recipes/ferplus_teacher.yaml", *changes, cwd=clone, env=empty_home)
    command = next(line for line in result.stdout.splitlines() if "-m mien train" in line)
    assert all(change in command.split() for change in changes)
    assert "RECIPE=" not in command
