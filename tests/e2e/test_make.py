"""First use of make: help, a missing Python, a missing model, unusual folders."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import ROOT

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


def test_help_lists_every_command(clone: Path, empty_home: dict[str, str]) -> None:
    result = _make("help", cwd=clone, env=empty_home)
    phony = next(line for line in (clone / "Makefile").read_text(encoding="utf-8").splitlines() if ".PHONY" in line)
    listed = {line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ")}
    assert listed == set(phony.removeprefix(".PHONY:").split())


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


@pytest.mark.parametrize(("pins", "pulled"), [("serve", True), ("gpu", True), ("train", False), ("test", False)])
def test_installing_for_serving_tries_to_download_the_detector_once(
    pins: str, pulled: bool, clone: Path, tmp_path: Path, empty_home: dict[str, str]
) -> None:
    log = tmp_path / "calls"
    python = tmp_path / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\n[ "$2" != mien ]\n', encoding="utf-8")
    python.chmod(0o755)
    command = ["sh", "requirements/install.sh", str(python.parents[1]), pins]
    subprocess.run(command, cwd=clone, env=empty_home, capture_output=True, timeout=20, check=True)
    assert log.read_text(encoding="utf-8").splitlines().count("-m mien models pull --optional") == pulled
    assert (python.parents[1] / ".installed").exists()


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


def test_ci_exports_the_folders_next_to_the_checkout(tmp_path: Path, empty_home: dict[str, str]) -> None:
    checkout, shared = tmp_path / "a checkout", tmp_path / "shared"
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy2(ROOT / ".ci" / "run", checkout / ".ci")
    (checkout / "Makefile").write_text("test-all:\n\t@env\n", encoding="utf-8")
    for folder in ("models", "photos"):
        (shared / folder).mkdir(parents=True)
    env = {name: value for name, value in empty_home.items() if not name.startswith("MIEN_")}
    command = [checkout / ".ci" / "run"]
    result = subprocess.run(command, cwd=os.sep, env=env, capture_output=True, text=True, timeout=20, check=True)
    offered = dict(line.split("=", 1) for line in result.stdout.splitlines() if line.startswith("MIEN_"))
    assert offered == {"MIEN_MODELS_DIR": str(shared / "models"), "MIEN_PHOTOS_DIR": str(shared / "photos")}
