"""Continuous integration fails if a test is skipped for a reason that is not expected there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT


@pytest.mark.parametrize(
    ("reason", "ci", "fails"),
    [
        ("MIEN_DATA_DIR is not set: no set", True, False),
        ("no Chromium is installed", True, True),
        ("no Chromium is installed", False, False),
    ],
)
def test_an_unexpected_skip_fails_the_run_of_several_processes(
    tmp_path: Path, reason: str, ci: bool, fails: bool
) -> None:
    (tmp_path / "test_a.py").write_text(f"import pytest\ndef test_a(): pytest.skip({reason!r})\ndef test_b(): pass\n")
    shutil.copy(ROOT / "tests" / "support" / "skips.py", tmp_path)  # without the package, whose imports take seconds
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("CI", None)
    options = ["-c", os.devnull, "--rootdir", ".", "-p", "skips", "-p", "xdist", "-n", "2"]
    command, chosen = [sys.executable, "-m", "pytest", *options, "."], {"CI": "true"} if ci else {}
    done = subprocess.run(command, cwd=tmp_path, env=environment | chosen, capture_output=True, text=True, check=False)
    assert (done.returncode, reason in done.stdout.partition("skips that are not expected")[2]) == (fails, fails)
