"""Continuous integration fails if a test is skipped for a reason that is not expected there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT

_FILES = {
    "test_expected.py": "import pytest\ndef test_a(): pytest.skip('MIEN_DATA_DIR is not set: no set')\n",
    "test_browser.py": "import pytest\ndef test_a(): pytest.skip('no Chromium is installed')\n",
    "test_store.py": "import pytest\npytest.skip('moto is not installed: no S3', allow_module_level=True)\n",
}


@pytest.mark.parametrize(
    ("files", "ci", "reported"),
    [
        (_FILES, "true", {"test_browser.py", "test_store.py"}),
        (("test_expected.py",), "true", set()),
        (_FILES, None, set()),
    ],
)
def test_an_unexpected_skip_fails_the_run(
    tmp_path: Path, files: tuple[str, ...], ci: str | None, reported: set[str]
) -> None:
    for name in files:
        (tmp_path / name).write_text(_FILES[name], encoding="utf-8")
    (tmp_path / "test_other.py").write_text("def test_other(): pass\n", encoding="utf-8")
    shutil.copy(ROOT / "tests" / "support" / "skips.py", tmp_path)  # without the package, whose imports take seconds
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("CI", None)
    options = ["-c", os.devnull, "--rootdir", ".", "-p", "skips"] + (["-p", "xdist", "-n", "2"] if reported else [])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "."],
        cwd=tmp_path,
        env=environment | ({"CI": ci} if ci else {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == bool(reported), done.stdout + done.stderr
    summary = done.stdout.partition("skips that are not expected")[2]
    assert {name for name in _FILES if name in summary} == reported
