"""Figures of evaluations and experiments, by matplotlib."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mien.data.atomic import atomic_path
from mien.training.wording import percent

COLORS: Final = ("#0067a5", "#c4510b", "#117a56", "#8a4a9e")
GRAY: Final = "#5a616b"
STYLE: Final[Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 110,
    "text.parse_math": False,  # names may contain dollar signs
}


def percent_axis(axis: Any) -> None:
    """Label an axis of fractions in percent."""
    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1.0, symbol=""))


def _reliability(axes: Axes, bins: Sequence[tuple[int, float, float]], title: str) -> None:
    faces, _, accuracy = np.array(bins).T
    edges = np.linspace(0, 1, len(bins) + 1)
    axes.bar(edges[:-1], accuracy, np.diff(edges), align="edge", color=COLORS[0], alpha=0.6)
    axes.bar(edges[:-1], faces / faces.sum(), np.diff(edges), align="edge", color=GRAY, alpha=0.8)
    axes.plot([0, 1], [0, 1], color=GRAY, linestyle="--", linewidth=1)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence, %", ylabel="accuracy, %", title=title)
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)


def write_scores(path: Path, scores: Mapping[str, Any], labels: Sequence[str], *, title: str) -> None:
    """Draw confusion, in % of the faces of each class, and reliability, as PNG."""
    counts = np.array(scores["confusion"])
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    with in_style():
        drawn = Figure(figsize=(9.0, 4.0))
        drawn.suptitle(f"{title}, {scores['prior']}")
        matrix, bins = drawn.subplots(1, 2)
        matrix.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (row, column), share in np.ndenumerate(shares):
            color = "white" if share > 0.5 else "black"
            matrix.text(column, row, percent(share, 0), ha="center", va="center", color=color, fontsize=8)
        matrix.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
        matrix.set_yticks(range(len(labels)), labels)
        matrix.set(xlabel="predicted", ylabel="label")
        matrix.grid(visible=False)
        _reliability(bins, scores["reliability"], f"ECE {percent(scores['ece'])} %")
        save(drawn, path)


def save(drawn: Figure, path: Path) -> None:
    """Write a figure as PNG; the same figure gives the same bytes."""
    with atomic_path(path) as part:
        drawn.savefig(part, format="png", metadata={"Software": None})


def in_style() -> Any:
    """Context for creating and drawing figures."""
    return mpl.rc_context(STYLE)
