"""Copy of the working tree to run commands in, in a folder with a space."""

import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

TAKEN = (
    "app", "benchmarks", "data", "mien", "models", "requirements", "samples", "training", "Makefile", "pyproject.toml",
)  # fmt: skip


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the working tree whose `.venv` uses the interpreter of the tests."""
    folder = tmp_path_factory.mktemp("e2e") / "my mien"
    folder.mkdir()
    for name in TAKEN:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy2(source, folder)
    _stand_in_environment(folder / ".venv")
    return folder


def _stand_in_environment(environment: Path) -> None:
    (environment / "bin").mkdir(parents=True)
    for program, arguments in {"python": "", "mien": "-m mien"}.items():
        script = environment / "bin" / program
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n', encoding="utf-8")
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    (environment / ".installed").touch()


def new_user(home: Path) -> dict[str, str]:
    """Environment variables of a new user, with the detector file if the tests have it."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "MIEN_MODELS_DIR") if name in os.environ}
    return kept | {"HOME": str(home), "LANG": "C.UTF-8", "MIEN_DEVICE": "cpu"}


@pytest.fixture
def empty_home(tmp_path: Path) -> dict[str, str]:
    return new_user(tmp_path)
