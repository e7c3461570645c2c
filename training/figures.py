"""Figures of the report and of experiments, by matplotlib."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cv2
import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from mien.data.atomic import atomic_path
from mien.data.contract import Array
from mien.training import metrics
from mien.training.wording import percent

if TYPE_CHECKING:
    from mien.training.evaluate import Scores
    from mien.training.report import History

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
    "svg.fonttype": "none",
    "svg.hashsalt": "mien",
    "text.parse_math": False,  # names may contain dollar signs
}

_UNDATED: Final = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


@dataclass(frozen=True, slots=True)
class Picture:
    """An image of the page."""

    uri: str
    alt: str


def percent_axis(axis: Any) -> None:
    """Label an axis of fractions in percent."""
    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(PercentFormatter(1.0, symbol=""))


def history(run: "History", *, best_epoch: int) -> Picture:
    """Losses, and both validation accuracies by epoch, with the selected epoch."""
    drawn = Figure(figsize=(8.4, 3.0))
    losses, accuracies = drawn.subplots(1, 2)
    for color, (part, values) in zip(COLORS, run.loss.items(), strict=False):
        losses.plot(run.position, values, color=color, label=part)
    losses.set(title="training loss", ylabel="loss")
    for color, name in zip(COLORS, ("accuracy", "mean_class_accuracy"), strict=False):
        label = name.replace("_", " ")
        accuracies.plot(run.epochs, getattr(run, name), "o-", markersize=3, color=color, label=label)
    accuracies.axvline(best_epoch, color=GRAY, linewidth=0.8, linestyle=":", label="selected epoch")
    accuracies.set(title="validation", ylabel="%")
    percent_axis(accuracies.yaxis)
    for axes in (losses, accuracies):
        axes.set(xlabel="epoch", xlim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
    best = percent(float(run.accuracy.max()))
    return _svg(drawn, f"Training loss, and validation accuracy, by epoch; accuracy {best} % at best")


def calibration(
    unscaled: "Scores", scaled: "Scores", probabilities: Array, labels: Array, *, threshold: float
) -> Picture:
    """Reliability before and after temperature scaling (Guo et al. 2017), and error over coverage."""
    drawn = Figure(figsize=(8.4, 3.0))
    before, after, abstention = drawn.subplots(1, 3)
    before_title, after_title = f"unscaled, ECE {percent(unscaled.ece)} %", f"scaled, ECE {percent(scaled.ece)} %"
    _reliability(before, unscaled.reliability, before_title)
    _reliability(after, scaled.reliability, after_title)
    _, selective = metrics.by_confidence(probabilities, labels)
    abstention.plot(np.arange(1, len(labels) + 1) / len(labels), 1 - selective, color=COLORS[0])
    abstention.axhline(1 - metrics.TARGET_ACCURACY, color=GRAY, linestyle="--", linewidth=1)
    covered = float((probabilities.max(axis=1) >= threshold).mean())
    abstention.axvline(covered, color=COLORS[1], linestyle=":", linewidth=1.4)
    abstention.set(title="with abstention", xlim=(0, 1), ylim=(0, None), xlabel="coverage, %", ylabel="error, %")
    percent_axis(abstention.xaxis)
    percent_axis(abstention.yaxis)
    return _svg(drawn, f"Reliability, {before_title}, {after_title}; error over coverage, {percent(covered)} % labeled")


def _reliability(axes: Axes, bins: Sequence[tuple[int, float, float]], title: str) -> None:
    faces, _, accuracy = np.array(bins).T
    edges = np.linspace(0, 1, len(bins) + 1)
    axes.bar(edges[:-1], accuracy, np.diff(edges), align="edge", color=COLORS[0], alpha=0.6)
    axes.bar(edges[:-1], faces / faces.sum(), np.diff(edges), align="edge", color=GRAY, alpha=0.8)
    axes.plot([0, 1], [0, 1], color=GRAY, linestyle="--", linewidth=1)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence, %", ylabel="accuracy, %", title=title)
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)


def write_scores(path: Path, scores: "Scores", labels: Sequence[str], *, title: str) -> None:
    """Draw confusion, in % of the faces of each class, and reliability, as PNG, SVG or PDF."""
    counts = np.array(scores.confusion)
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))
    with in_style():
        drawn = Figure(figsize=(9.0, 4.0))
        drawn.suptitle(f"{title}, {scores.prior}")
        matrix, bins = drawn.subplots(1, 2)
        matrix.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for (row, column), share in np.ndenumerate(shares):
            color = "white" if share > 0.5 else "black"
            matrix.text(column, row, percent(share, 0), ha="center", va="center", color=color, fontsize=8)
        matrix.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
        matrix.set_yticks(range(len(labels)), labels)
        matrix.set(xlabel="predicted", ylabel="label")
        matrix.grid(visible=False)
        _reliability(bins, scores.reliability, f"ECE {percent(scores.ece)} %")
        save(drawn, path)


def thumbnail(image: Array, alt: str) -> Picture:
    """An image (H, W, 3) uint8, RGB."""
    data = cv2.imencode(".webp", image[:, :, ::-1], [cv2.IMWRITE_WEBP_QUALITY, 85])[1]
    return Picture("data:image/webp;base64," + base64.b64encode(data.tobytes()).decode(), alt)


def _svg(drawn: Figure, alt: str) -> Picture:
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="svg", metadata={"Date": None})
    return Picture("data:image/svg+xml;base64," + base64.b64encode(buffer.getvalue()).decode(), alt)


def save(drawn: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF; the same figure gives the same bytes."""
    with atomic_path(path) as part:
        drawn.savefig(part, metadata=_UNDATED[path.suffix])


def in_style() -> Any:
    """Context for creating and drawing figures."""
    return mpl.rc_context(STYLE)
