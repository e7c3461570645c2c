"""Sections of the report, from made-up runs."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from mien.models.manifest import Interval
from mien.training.config import DataSource
from mien.training.loop import metrics
from mien.training.loop.run_folder import RunError
from mien.training.report import plot
from mien.training.report.calibration import bins_of, risk_coverage
from mien.training.report.curves import validation_note
from mien.training.report.history import read_history, smooth
from mien.training.report.looking import examples
from mien.training.report.mistakes import most_confidently_wrong
from mien.training.report.render import render
from mien.training.report.results import RunResult
from mien.training.report.slices import share, slices_of
from tests.support_training import Page, small_recipe
from tools.illustrate import label_of

RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, 7, 500)
PROBABILITIES = RNG.dirichlet(np.ones(7), 500)


def write_metrics(folder: Path, lines: list[dict[str, object]]) -> Path:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def two_epochs(*, distillation: float = 0.0) -> list[dict[str, object]]:
    part = {"supervised": 1.0, "distillation": distillation}
    return [
        {"step": 5, "loss": 2.0, **part, "faces_per_s": 50.0},
        {"step": 10, "loss": 1.5, **part, "faces_per_s": 100.0},
        {"step": 10, "epoch": 0, "head": "class", "valid_accuracy": 0.3, "valid_mean_class_accuracy": 0.2},
        {"step": 20, "loss": 1.0, **part, "faces_per_s": 200.0},
        {"step": 20, "epoch": 1, "head": "class", "valid_accuracy": 0.5, "valid_mean_class_accuracy": 0.4},
    ]


def test_the_bins_of_the_diagram_give_the_calibration_error_that_is_reported() -> None:
    bins = bins_of(PROBABILITIES, LABELS)
    gaps = np.abs(np.nan_to_num(bins.accuracy - bins.confidence))
    assert bins.counts.sum() == 500
    assert (gaps * bins.counts).sum() / 500 == pytest.approx(metrics.ece(PROBABILITIES, LABELS))


def test_risk_is_the_error_of_the_most_confident_and_ends_at_that_of_all() -> None:
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.2, 0.8], [0.55, 0.45]])
    curve = risk_coverage(probabilities, np.array([0, 0, 1, 1]))
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 0, 1 / 3, 2 / 4])


def test_mistakes_are_sorted_by_confidence_and_exclude_correct_faces() -> None:
    predicted, labels = np.array([0, 1, 2, 3]), np.array([0, 2, 2, 1])
    assert most_confidently_wrong(predicted, np.array([0.9, 0.5, 0.9, 0.7]), labels).tolist() == [3, 1]
    assert most_confidently_wrong(predicted, np.ones(4), labels, shown=1).tolist() == [1]


def test_examples_are_a_median_correct_face_and_the_most_confident_mistake_per_class() -> None:
    labels = np.array([0, 0, 0, 0, 0, 6])
    predicted = np.array([0, 0, 0, 1, 2, 1])
    chosen = examples(predicted, np.array([0.9, 0.5, 0.7, 0.6, 0.8, 0.3]), labels)
    assert chosen.tolist() == [2, 4, 5]


def test_minutes_are_computed_from_the_speed_of_each_epoch(tmp_path: Path) -> None:
    history = read_history(write_metrics(tmp_path, two_epochs()), batch_size=60)
    assert history.minutes == pytest.approx((10 * 60 / 100 + 10 * 60 / 200) / 60)
    assert history.faces_per_s == pytest.approx(20 * 60 / 9)
    assert history.position.tolist() == [0.5, 1.0, 2.0]
    assert history.epochs.tolist() == [1, 2]
    assert history.training_accuracy is None
    assert np.isnan(history.data_wait_share)


def test_metrics_of_newer_runs_are_read_if_present(tmp_path: Path) -> None:
    lines = [line | {"accuracy": 0.25, "data_wait_share": 0.5} if "loss" in line else line for line in two_epochs()]
    engine = {"step": 20, "faces_per_s": 150.0, "data_wait_share": 0.125, "matmul_share": 0.3}
    history = read_history(write_metrics(tmp_path, [*lines[:-1], engine, lines[-1]]), batch_size=60)
    assert history.training_accuracy is not None
    assert history.training_accuracy.tolist() == [0.25] * 3
    assert history.data_wait_share == 0.125
    assert history.minutes == pytest.approx((10 * 60 / 100 + 10 * 60 / 150) / 60)


def test_the_loss_is_split_only_with_a_teacher(tmp_path: Path) -> None:
    assert list(read_history(write_metrics(tmp_path, two_epochs()), batch_size=8).loss) == ["loss"]
    taught = read_history(write_metrics(tmp_path, two_epochs(distillation=0.4)), batch_size=8)
    assert list(taught.loss) == ["loss", "supervised", "distillation"]


def test_a_run_without_a_completed_epoch_or_with_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    write_metrics(tmp_path, two_epochs()[:2])
    with pytest.raises(RunError, match="no epoch is completed"):
        read_history(tmp_path, batch_size=8)
    write_metrics(tmp_path, [line for line in two_epochs() if "loss" not in line])
    with pytest.raises(RunError, match="log_every_steps"):
        read_history(tmp_path, batch_size=8)
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "lo', encoding="utf-8")
    with pytest.raises(RunError, match="damaged"):
        read_history(tmp_path, batch_size=8)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match="cannot be read"):
        read_history(tmp_path, batch_size=8)


def test_a_running_mean_looks_back_only() -> None:
    assert smooth(np.array([4.0, 2.0, 0.0, 0.0]), window=2).tolist() == [4.0, 3.0, 1.0, 0.0]


def test_a_slice_of_few_faces_has_a_wide_interval() -> None:
    found = share(8, 10)
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-3)
    assert share(1, 1).low < 0.25


def test_slices_contain_each_annotated_face_once() -> None:
    attributes = [{"gender": "female", "person": "x"}, {"gender": "male"}, {"gender": "female"}, {}]
    found = slices_of(attributes, np.array([0, 1, 2, 3]), np.array([0, 1, 1, 3]))
    assert [(part.attribute, part.value, part.faces, part.accuracy.value) for part in found] == [
        ("gender", "female", 2, 0.5),
        ("gender", "male", 1, 1.0),
    ]
    ages = [{"age_band": band} for band in ("70+", "4-19", "20-39", "0-3")]
    assert [part.value for part in slices_of(ages, np.arange(4), np.arange(4))] == ["0-3", "4-19", "20-39", "70+"]
    assert slices_of([{"gray": "1"}] * 4, np.arange(4), np.arange(4)) == []


def test_a_figure_has_only_the_colors_of_the_page_and_is_the_same_each_time() -> None:
    rows = [plot.Row("a", "n 3", (Interval(0.5, 0.2, 0.8), Interval(0.4, 0.1, 0.9)))]
    drawn = [str(plot.intervals(rows, name="x", label="y", legend=("one", "two"))) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert "#0" not in drawn[0]
    assert "var(--series-1)" in drawn[0]
    assert "currentColor" in drawn[0]
    assert 'width="' not in drawn[0].split(">", 1)[0]


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", 'a" onload="alert(1)', "two $dollars$ & more"])
def test_a_hostile_name_is_text_in_figures_and_templates(name: str) -> None:
    rows = [plot.Row(name, name, (Interval(0.5, 0.2, 0.8),))]
    figure = str(plot.intervals(rows, name="x", label=name))
    table = str(render("overview.html", headings=("run",), rows=[(name,)]))
    seen = Page(figure + table)
    assert "script" not in seen.tags
    assert "onload" not in seen.attributes
    assert "".join(seen.text).count(name) == 3  # both labels of the row, and the table's cell
    if "dollars" in name:
        assert "two $dollars$ &amp; more" in figure


@pytest.mark.parametrize(("low", "high"), [(0.80, 0.82), (0.0, 1.0), (0.871, 0.8735)])
def test_no_two_ticks_of_an_axis_have_the_same_label(low: float, high: float) -> None:
    with plot.style():
        drawn = plot.figure()
        axes = drawn.subplots()
        axes.plot([0, 1], [low, high])
        plot.percent_axis(axes.yaxis)
        drawn.canvas.draw()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert len(labels) == len(set(labels)) >= 3
    assert all(float(label) == pytest.approx(100 * tick) for label, tick in zip(labels, axes.get_yticks(), strict=True))


def test_runs_validated_on_different_sets_are_reported() -> None:
    def run(name: str, **options: object) -> RunResult:
        valid = DataSource(kind="ferplus", split="valid", options=options)
        data = SimpleNamespace(valid=valid)
        return cast(RunResult, SimpleNamespace(name=name, recipe=SimpleNamespace(data=data)))

    assert validation_note([run("a"), run("b")], "FERPlus valid") == ""
    note = validation_note([run("a"), run("b", exclude_near_duplicates_of="train")], "FERPlus valid")
    assert "are not comparable: a: ferplus valid; b: ferplus valid (exclude_near_duplicates_of=train)" in note
    assert "evaluates all of them on FERPlus valid" in note


def test_the_legends_of_two_runs_of_one_mode_differ(tmp_path: Path) -> None:
    first, second = (small_recipe(tmp_path, name=name) for name in ("first", "second"))
    assert label_of(first, second) != label_of(second, first)
    assert label_of(first, None) == "distillation: none"
