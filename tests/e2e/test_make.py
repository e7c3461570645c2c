"""What a user meets at the first command: the list of commands, a missing Python, a missing model, odd folders."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed here")


def _make(*arguments: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=100, check=False)


def _only_tools(folder: Path, *, python: str | None) -> str:
    """A PATH with what `make` needs, and with a `python3` that says it has the version that is given."""
    for tool in ("sh", "make", "dirname", "touch", "test", "ls"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    if python is not None:
        script = folder / "python3"
        script.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "Python {python}"\nexit 1\n', encoding="utf-8")
        script.chmod(0o755)
    return str(folder)


def test_help_lists_every_command(clone: Path, empty_home: dict[str, str]) -> None:
    answer = _make("help", cwd=clone, env=empty_home)
    phony = next(line for line in (clone / "Makefile").read_text(encoding="utf-8").splitlines() if ".PHONY" in line)
    listed = {line.split()[0] for line in answer.stdout.splitlines() if line.startswith("  ")}
    assert listed == set(phony.removeprefix(".PHONY:").split())


@pytest.mark.parametrize(("found", "said"), [(None, "no python3"), ("3.10.13", "Python 3.10.13")])
def test_missing_python_is_named(
    found: str | None, said: str, clone: Path, tmp_path: Path, empty_home: dict[str, str]
) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    env = empty_home | {"PATH": _only_tools(tools, python=found), "ENV_SERVE": "another-environment"}
    answer = _make("label", cwd=clone, env=env)
    assert answer.returncode != 0
    assert "Python 3.11 or 3.12 is needed" in answer.stderr
    assert said in answer.stderr
    assert not (clone / "another-environment").exists()


def test_training_asks_for_a_recipe_before_it_installs(clone: Path, empty_home: dict[str, str]) -> None:
    answer = _make("train", cwd=clone, env=empty_home)
    assert answer.returncode != 0
    assert "make train RECIPE=" in answer.stderr
    assert "training/recipes/ferplus_teacher.yaml" in answer.stderr
    assert not (clone / ".venv-train").exists()


def test_a_clone_without_a_model_says_so(clone: Path, tmp_path: Path, empty_home: dict[str, str]) -> None:
    env = empty_home | {"MIEN_MODEL": str(tmp_path / "absent"), "OUT": str(tmp_path / "out")}
    answer = _make("label", cwd=clone, env=env)
    assert answer.returncode != 0
    assert "absent" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_ci_offers_what_lies_beside_the_checkout(tmp_path: Path, empty_home: dict[str, str]) -> None:
    checkout, shared = tmp_path / "a checkout", tmp_path / "shared"
    (checkout / ".ci").mkdir(parents=True)
    shutil.copy2(ROOT / ".ci" / "run", checkout / ".ci")
    (checkout / "Makefile").write_text("test:\n\t@env\n", encoding="utf-8")
    for folder in ("models", "photos"):
        (shared / folder).mkdir(parents=True)
    env = {name: value for name, value in empty_home.items() if not name.startswith("MIEN_")}
    command = [checkout / ".ci" / "run"]
    answer = subprocess.run(command, cwd=os.sep, env=env, capture_output=True, text=True, timeout=20, check=True)
    offered = dict(line.split("=", 1) for line in answer.stdout.splitlines() if line.startswith("MIEN_"))
    assert offered == {"MIEN_MODELS_DIR": str(shared / "models"), "MIEN_PHOTOS_DIR": str(shared / "photos")}
