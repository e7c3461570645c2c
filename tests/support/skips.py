"""A plugin of pytest: with `CI` set, a skip that is not expected there fails the run.

A browser, a program or a package that disappears from the machine would otherwise switch off whole areas silently.
"""

import os
import re
from typing import Final

import pytest

# Expected on an ordinary machine without a GPU, with or without the folders of the MIEN_* variables.
EXPECTED: Final = re.compile(
    r"MIEN_\w+ is not set|.* is not there: "  # the folders
    r"|.* is not here: `make runtime`"  # `make test-all` fetches it, if npm is installed
    r"|fp16 needs a GPU|no GPU to test|this machine has a GPU"
    r"|(?!npm|node|moto|rawpy)[\w.-]+ is not installed: "  # programs that read outputs, and Ray Serve
    r"|this example needs (?!curl|node)|could not import 'dlib'|Ray Serve is not installed|uv is not installed"
    r"|a small disk needs the right to mount|building an image needs root|not a git checkout"
    r"|.* has no make_\w+ that draws"
)
_unexpected: set[str] = set()


def is_expected(reason: str) -> bool:
    """Whether a machine of continuous integration may skip a test for this reason."""
    return EXPECTED.match(reason) is not None


def _note(report: pytest.CollectReport | pytest.TestReport) -> None:
    if report.skipped and "CI" in os.environ and not hasattr(report, "wasxfail"):
        reason = (report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)).strip()
        if not is_expected(reason.removeprefix("Skipped: ")):
            _unexpected.add(f"{report.nodeid}: {reason}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unexpected and not hasattr(session.config, "workerinput"):  # the processes of pytest-xdist send their reports
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _unexpected:
        terminalreporter.section("skips that are not expected (tests/support/skips.py)")
        for line in sorted(_unexpected):
            terminalreporter.write_line(line)
