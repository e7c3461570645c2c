"""Progress without a terminal: lines for a log, JSON lines for a scheduler."""

import io

import pytest
from rich.console import Console

from mien.app.labeling.options import LabelOptions
from mien.app.labeling.progress import Bar, JsonLog, Lines, Reporter, reporter


def test_a_log_without_a_terminal_gets_lines_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=200)
    report = Lines(console)
    report.start(10, 3)
    report.labeled(1, 0, [("a.jpg", "corrupt", "cut off")])  # not due yet
    monkeypatch.setattr(Lines, "every_s", 0.0)
    report.labeled(1, 0, [("a.jpg", "corrupt", "cut off")])
    report.writing("csv")
    report.start(0, 0)
    report.labeled(5, 5, [])  # of an archive: not more than their total
    first, second, third = console.file.getvalue().splitlines()
    assert first.startswith("5 of 10 images, 0 faces, 2 errors, ")
    assert "min left" in first
    assert second == "writing csv"
    assert third.startswith("7 of 7 images, 5 faces, 2 errors")
    assert "left" not in third


@pytest.mark.parametrize(
    ("options", "terminal", "kind"),
    [({"json_log": True}, True, JsonLog), ({"quiet": True}, True, Reporter), ({}, True, Bar), ({}, False, Lines)],
)
def test_the_mode_and_the_terminal_choose_the_reporter(options: dict[str, bool], terminal: bool, kind: type) -> None:
    console = Console(file=io.StringIO(), force_terminal=terminal)
    with reporter(LabelOptions(**options), console) as report:
        report.start(2, 1)
        report.labeled(1, 3, [])
        report.writing("csv")
    assert type(report) is kind
    assert ("3 faces" in console.file.getvalue()) == (kind is Bar)
