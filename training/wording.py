"""Percentages, their intervals, and confusions in tables, cards and reports."""

from collections.abc import Iterable, Sequence

import numpy as np

from mien.data.contract import Array
from mien.models.manifest import Interval


def percent(share: float, digits: int = 1, *, sign: str = "") -> str:
    """Format a share as a percentage, without the percent sign; `sign="+"` shows the sign of gains."""
    return f"{100 * share:{sign}.{digits}f}"


def interval(figure: Interval, digits: int = 2, *, sign: str = "") -> str:
    """Format a share and its interval as percentages."""
    value, low, high = (percent(share, digits, sign=sign) for share in (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high})"


def most_confused(counts: Array, labels: Sequence[str]) -> str:
    """The most frequent confusion in a confusion matrix, as `fear labeled surprise: 20 %`; "" if there is none."""
    wrong = counts - np.diag(np.diag(counts))
    if not wrong.any():
        return ""
    actual, predicted = (int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape))
    share = wrong[actual, predicted] / counts[actual].sum()
    return f"{labels[actual]} labeled {labels[predicted]}: {percent(share, 0)} %"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; vertical bars in cells are escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
