"""Table and figure of an experiment, from made-up results."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from mien.models.manifest import Interval
from mien.models.network import Head
from mien.training.report.comparison import Figures, Result, as_table, write_curves, write_figure
from mien.training.report.history import History
from mien.training.variants import Plot
from mien.training.wording import markdown_table


def result(row: str, value: float, *, head: Head = "class", chosen: bool = True) -> Result:
    figures = Figures(Interval(value, value - 0.02, value + 0.03), (value - 0.01, value + 0.01))
    gain = Interval(0.01, -0.01, 0.02)
    return Result(row, head, chosen, 2_700_000, figures, figures, gain, (0.5, 0.04), 3.4)


RESULTS = [result("cnn_10", 0.5), result("cnn_100", 0.7), result("vit_10", 0.4), result("vit_100", 0.75)]
PLOT = Plot(
    x="faces, %",
    panels={
        "alone": {"CNN": {10: "cnn_10", 100: "cnn_100"}, "ViT": {10: "vit_10", 100: "vit_100"}},
        "taught": {"CNN": {10: "cnn_10", 100: "cnn_100"}, "ViT": {10: "vit_10", 100: "vit_100"}},
    },
)


def test_the_table_has_intervals_and_marks_the_selected_head() -> None:
    table = markdown_table(*as_table([result("a", 0.5), result("a", 0.4, head="mean", chosen=False)]))
    assert "| a | class * | 2.70 M | 2 | 50.0 ± 1.4 (48.0 to 53.0) |" in table
    assert "| a | mean | 2.70 M |" in table
    assert "| +1.0 (-1.0 to +2.0) | 0.5, 0.04 | 3 |" in table


def test_the_figure_names_axes_lines_and_panels_and_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        write_figure(tmp_path / name, RESULTS, PLOT)
    text = (tmp_path / "a.svg").read_text(encoding="utf-8")
    for word in ("CNN", "ViT", "alone", "taught", "faces, %", "validation accuracy, %"):
        assert f">{word}<" in text
    assert ">10<" in text
    assert ">100<" in text
    assert (tmp_path / "b.svg").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(("plot", "panels"), [(PLOT, 4), (None, 1)])
def test_curves_have_a_line_per_row_over_the_faces_seen(tmp_path: Path, plot: Plot | None, panels: int) -> None:
    epochs, one = np.array([1, 2]), np.ones(2)
    histories = {
        row: [History(one, {}, epochs, 100 * epochs, level * one, one, 1, 1) for level in (0.4, 0.6)]
        for row in ("cnn_10", "cnn_100", "vit_10")  # vit_100 is not trained
    }
    write_curves(tmp_path / "curves.svg", histories, plot)
    text = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert text.count(">faces seen<") == (2 if plot else 1)
    assert all(f">{name}<" in text for name in (("CNN", "ViT", "alone, faces, %: 10") if plot else histories))
    assert text.count('id="axes_') == panels


def test_panels_may_have_five_lines_and_different_positions(tmp_path: Path) -> None:
    lines = {f"line {number}": {10: "cnn_10"} for number in range(5)}
    plot = Plot(x="faces, %", panels={"many": lines, "other": {"CNN": {100: "cnn_100"}}})
    write_figure(tmp_path / "a.svg", RESULTS, plot)
    one = np.ones(2)
    write_curves(tmp_path / "b.svg", {"cnn_10": [History(one, {}, one, one, one, one, 1, 1)]}, plot)
    assert ">other, faces, %: 100<" in (tmp_path / "b.svg").read_text(encoding="utf-8")


def test_a_figure_without_lines_has_the_selected_head_of_each_row(tmp_path: Path) -> None:
    both = [result("a", 0.5), result("a", 0.9, head="mean", chosen=False), result("b", 0.6)]
    write_figure(tmp_path / "both.svg", both, None)
    write_figure(tmp_path / "one.svg", [both[0], both[2]], None)
    both_text, one_text = ((tmp_path / name).read_text(encoding="utf-8") for name in ("both.svg", "one.svg"))
    assert both_text == one_text
    assert one_text.count(">a<") == one_text.count(">b<") == 1


@pytest.mark.parametrize("rows", [RESULTS, RESULTS[:1]])
def test_missing_rows_leave_gaps(tmp_path: Path, rows: list[Result]) -> None:
    write_figure(tmp_path / "some.png", rows, PLOT)
    image = cv2.imread(str(tmp_path / "some.png"))
    assert image is not None
    assert len(np.unique(image)) > 10
