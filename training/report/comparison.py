"""Table and figure of an experiment: rows with intervals over faces, deviation over seeds, and tests between rows."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from mien.models.manifest import Interval
from mien.models.network import Head
from mien.training.report.figures import COLORS, in_style, percent_axis, save
from mien.training.report.history import History
from mien.training.variants import Plot
from mien.training.wording import interval, percent

_MARKERS: Final = ("o", "s", "D", "^")


@dataclass(frozen=True, slots=True)
class Figures:
    """A metric of one row: the mean over its seeds with an interval over faces, and each seed."""

    mean: Interval
    by_seed: tuple[float, ...]

    def __str__(self) -> str:
        """In percent, with the standard deviation over several seeds."""
        if len(self.by_seed) == 1:
            return interval(self.mean, 1)
        value, bounds = interval(self.mean, 1).split(" ", 1)
        return f"{value} ± {percent(float(np.std(self.by_seed, ddof=1)))} {bounds}"


@dataclass(frozen=True, slots=True)
class Result:
    """Metrics of one head of one row, over all seeds."""

    row: str
    head: Head
    chosen: bool  # whether validation selected this head, for the first seed
    parameters: int
    accuracy: Figures
    mean_class_accuracy: Figures
    gain: Interval | None  # of accuracy, over the selected head of the first row, paired by face; None for other faces
    mcnemar_p: tuple[float, ...]  # by seed, against the selected head of the first row with this seed
    minutes: float  # training time for one seed


def as_table(results: list[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows of the table for docs/experiments.md, in percent; `*` marks the head selected by validation."""
    headings: tuple[str, ...] = (
        "row", "head", "parameters", "seeds", "accuracy", "mean class accuracy", "gain over the first row",
        "McNemar p by seed", "minutes",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (
            result.row, f"{result.head}{' *' if result.chosen else ''}", f"{result.parameters / 1e6:.2f} M",
            str(len(result.accuracy.by_seed)), str(result.accuracy), str(result.mean_class_accuracy),
            interval(result.gain, 1, sign="+") if result.gain else "",
            ", ".join(f"{p:.2g}" for p in result.mcnemar_p), f"{result.minutes:.0f}",
        )
        for result in results
    ]  # fmt: skip
    return headings, rows


def write_figure(path: Path, results: list[Result], plot: Plot | None) -> None:
    """Draw the selected head of each row as PNG or SVG; without `plot`, one interval per row."""
    chosen = {result.row: result for result in results if result.chosen}
    with in_style():
        save(_rows(chosen) if plot is None else _lines(chosen, plot), path)


_METRICS: Final = {"accuracy": "accuracy, %", "mean_class_accuracy": "mean class accuracy, %"}


def write_curves(path: Path, histories: dict[str, list[History]], plot: Plot | None) -> None:
    """Draw validation accuracy over the faces seen in training, a line per row: the mean over its seeds.

    With `plot`, there is a panel per position, such as a share of the faces, and per panel of the plot.
    """
    panels = {("", ""): {row: row for row in histories}}
    if plot is not None:
        panels = {}
        for title, lines in plot.panels.items():
            for name, places in lines.items():
                for x, row in places.items():
                    panels.setdefault((title, f"{plot.x}: {x:g}"), {})[name] = row
    titles, positions = (list(dict.fromkeys(names)) for names in zip(*panels, strict=True))
    with in_style():
        drawn = Figure(figsize=(2.2 + 2.4 * len(positions), 1.2 + 2.1 * len(titles)))
        grid = drawn.subplots(len(titles), len(positions), sharex=True, sharey=True, squeeze=False).flat
        for axes, (title, position) in zip(grid, itertools.product(titles, positions), strict=True):
            if (rows := panels.get((title, position))) is None:
                axes.set_axis_off()
                continue
            for number, (name, shown) in enumerate(rows.items()):
                color, dash = COLORS[number % len(COLORS)], ("-", "--", ":")[number // len(COLORS) % 3]
                of_seeds = histories.get(shown, [])
                if of_seeds:
                    mean = np.mean([history.accuracy for history in of_seeds], axis=0)
                    axes.plot(of_seeds[0].faces, mean, dash, color=color, label=name)
            axes.set(title=f"{title}, {position}".strip(", "), xlabel="faces seen", ylabel="validation accuracy, %")
            axes.label_outer()
            percent_axis(axes.yaxis)
        handles = {str(line.get_label()): line for axes in drawn.axes for line in axes.get_lines()}
        drawn.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4)
        save(drawn, path)


def _rows(results: dict[str, Result]) -> Figure:
    drawn = Figure(figsize=(6.8, 0.9 + 0.28 * len(results)))
    for axes, (metric, title) in zip(drawn.subplots(1, 2, sharey=True), _METRICS.items(), strict=True):
        for place, result in enumerate(results.values()):
            figures: Figures = getattr(result, metric)
            axes.hlines(place, figures.mean.low, figures.mean.high, color=COLORS[0], linewidth=1.5)
            axes.plot(figures.mean.value, place, _MARKERS[0], color=COLORS[0], markersize=5)
            axes.plot(figures.by_seed, [place] * len(figures.by_seed), "o", color=COLORS[0], markersize=3, alpha=0.5)
        axes.set_yticks(range(len(results)), list(results))
        axes.set(xlabel=f"validation {title}", ylim=(len(results) - 0.5, -0.5))
        percent_axis(axes.xaxis)
    return drawn


def _lines(results: dict[str, Result], plot: Plot) -> Figure:
    drawn = Figure(figsize=(6.8, 5.4))
    grid = drawn.subplots(len(_METRICS), len(plot.panels), sharex=True, sharey="row", squeeze=False)
    for row, (metric, title) in zip(grid, _METRICS.items(), strict=True):
        for axes, (panel, lines) in zip(row, plot.panels.items(), strict=True):
            for number, (name, places) in enumerate(lines.items()):
                figures = {x: getattr(results[row], metric) for x, row in places.items() if row in results}
                _line(axes, name, figures, number=number)
            axes.set_title(panel if metric == "accuracy" else "")
            ticks = sorted({x for places in lines.values() for x in places})
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(FixedLocator(ticks))
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_xticklabels([f"{tick:g}" for tick in ticks])
        row[0].set_ylabel(f"validation {title}")
        percent_axis(row[0].yaxis)
    for axes in grid[-1]:
        axes.set_xlabel(plot.x)
    drawn.legend(*grid[0, 0].get_legend_handles_labels(), frameon=False, loc="outside lower left", ncols=4)
    return drawn


def _line(axes: Axes, name: str, figures: dict[float, Figures], *, number: int) -> None:
    shift = 1.05 ** (number - 1)  # so that the intervals of equal results stay visible
    places, color = [x * shift for x in figures], COLORS[number % len(COLORS)]
    means = [figure.mean for figure in figures.values()]
    axes.vlines(places, [mean.low for mean in means], [mean.high for mean in means], color=color, linewidth=1.5)
    marker = _MARKERS[(number + number // len(COLORS)) % len(_MARKERS)]
    axes.plot(places, [mean.value for mean in means], marker=marker, markersize=5, color=color, label=name)
    for place, figure in zip(places, figures.values(), strict=True):
        axes.plot([place] * len(figure.by_seed), figure.by_seed, "o", color=color, markersize=3, alpha=0.5)
