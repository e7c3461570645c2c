"""Table and figure of an experiment, from made-up results."""

from pathlib import Path

from mien.models.manifest import Interval
from mien.models.network import Head
from mien.training.report.comparison import Figures, Result, as_table, write_figure
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
