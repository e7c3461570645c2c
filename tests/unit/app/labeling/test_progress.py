"""Progress without a terminal: lines for a log, JSON lines for a scheduler."""

import io

import pytest
from rich.console import Console

from mien.app.labeling.options import LabelOptions
from mien.app.labeling.progress import Bar, JsonLog, Lines, Reporter, reporter

BAD = (1, 0, [("a.jpg", "corrupt", "cut off")])


def test_a_log_without_a_terminal_gets_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=200)
    with Lines(console) as report:
        report.start(10, 3)
        report.labeled(*BAD)  # not due yet
        monkeypatch.setattr(Lines, "every_s", 0.0)
        report.labeled(*BAD)
        report.writing("csv")
    first, second = console.file.getvalue().splitlines()
    assert first.startswith("5 of 10 images, 0 faces, 2 errors, ")
    assert "min left" in first
    assert second == "writing csv"


def test_the_mode_and_the_terminal_choose_the_reporter() -> None:
    assert isinstance(reporter(LabelOptions(json_log=True), Console()), JsonLog)
    assert type(reporter(LabelOptions(quiet=True), Console())) is Reporter
    assert isinstance(reporter(LabelOptions(), Console(force_terminal=True)), Bar)
    assert isinstance(reporter(LabelOptions(), Console(file=io.StringIO())), Lines)
