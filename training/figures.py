"""Figures of evaluations and experiments, by matplotlib."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mien.data.atomic import atomic_path
from mien.training.wording import percent

COLOR: Final = "#0067a5"
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


@contextmanager
def saved_figure(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure that is drawn in the block, then saved as PNG; the same figure gives the same bytes."""
    with mpl.rc_context(STYLE), atomic_path(path) as part:
        yield (drawn := Figure(figsize=(width, height)))
        drawn.savefig(part, format="png", metadata={"Software": None})


def percent_axis(axis: Any) -> None:
    """Label an axis of fractions in percent."""
    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1.0, symbol=""))


def _reliability(axes: Axes, bins: Sequence[tuple[int, float, float]], title: str) -> None:
    faces, _, accuracy = np.array(bins).T
    edges = np.linspace(0, 1, len(bins) + 1)
    axes.bar(edges[:-1], accuracy, np.diff(edges), align="edge", color=COLOR, alpha=0.6)
    axes.bar(edges[:-1], faces / faces.sum(), np.diff(edges), align="edge", color=GRAY, alpha=0.8)
    axes.plot([0, 1], [0, 1], color=GRAY, linestyle="--", linewidth=1)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence, %", ylabel="accuracy, %", title=title)
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)


def write_scores(path: Path, scores: Mapping[str, Any], labels: Sequence[str], *, title: str) -> None:
    """Draw confusion, in % of the faces of each class, and reliability, as PNG."""
    counts = np.array(scores["confusion"])
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    with saved_figure(path, 9.0, 4.0) as drawn:
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
