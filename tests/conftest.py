"""Fixtures of all tests, and a check of their skips.

With `CI` set, a skip that is not expected there fails the run: a browser, a program or a package that disappears from
the machine would otherwise switch off whole areas silently.
"""

import os
import re
from pathlib import Path
from typing import Final

import pytest

from mien.models.manifest import Agreement
from tests.support import tiny_artifact

# Expected on an ordinary machine without a GPU, with or without the folders of the MIEN_* variables.
EXPECTED_SKIPS: Final = re.compile(
    r"MIEN_\w+ is not set|.* is not there: "  # the folders
    r"|.* is not here: `make runtime`"  # `make test-all` fetches it, if npm is installed
    r"|fp16 needs a GPU|no GPU to test|this machine has a GPU"
    r"|(?!npm|node|moto)[\w.-]+ is not installed: "  # the notebook and the generator of clients
    r"|this example needs (?!curl|node)|could not import 'dlib'|uv is not installed"
    r"|a small disk needs the right to mount|not a git checkout"
)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run and name the skips that are not expected; with pytest-xdist, the process that has all reports."""
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or "CI" not in os.environ:
        return
    skips = [report for report in terminal.stats.get("skipped", ()) if not hasattr(report, "wasxfail")]
    reasons = {report.nodeid: str(report.longrepr[2]).removeprefix("Skipped: ") for report in skips}
    if unexpected := {name: reason for name, reason in reasons.items() if not EXPECTED_SKIPS.match(reason)}:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        terminal.section("skips that are not expected (tests/conftest.py)")
        for name, reason in sorted(unexpected.items()):
            terminal.write_line(f"{name}: {reason}")


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny artifact that corrects for rare classes, softens, expects votes, and calls faces small below 200 pixels.

    A test that changes it writes its own.
    """
    folder = tmp_path_factory.mktemp("artifacts") / "tiny.test"
    # expected votes that are flatter than the probabilities, and not in the same order
    agreement = Agreement(temperature=1.6, offsets=(0.3, -0.2, -0.6, 0.5, 0.1, -0.4, 0.3))
    return tiny_artifact(folder, agreement=agreement)
