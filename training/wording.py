"""Percentages, their intervals, and confusions in tables and cards, and files of tables."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table

from mien.data.atomic import write_atomic
from mien.data.contract import Array
from mien.training.metrics import Interval


def percent(share: float, digits: int = 1, *, sign: str = "") -> str:
    """Format a share as a percentage, without the percent sign; `sign="+"` shows the sign of gains."""
    return f"{100 * share:{sign}.{digits}f}"


def interval(figure: Interval | Mapping[str, float], digits: int = 2, *, sign: str = "") -> str:
    """Format a share and its interval, also from a file, as percentages."""
    figure = Interval(**figure) if isinstance(figure, Mapping) else figure
    value, low, high = (percent(share, digits, sign=sign) for share in (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high})"


_ROWS: Final = {
    "accuracy": "accuracy",
    "mean_class_accuracy": "mean class accuracy",
    "macro_f1": "macro-F1",
    "kept": "kept at the threshold",
    "kept_accuracy": "accuracy of what is kept",
    "nll": "negative log likelihood",
    "brier": "Brier score",
    "ece": "ECE, 15 bins",
    "kl_to_votes": "KL to votes (nats)",
}
_NOT_SHARES: Final = ("nll", "brier", "kl_to_votes")


def scores_table(columns: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of some `evaluate.scores`: metrics with their 95 % intervals, shares in percent."""
    rows = {title: [_cell(scores.get(name), name) for scores in columns.values()] for name, title in _ROWS.items()}
    labels = dict.fromkeys(label for scores in columns.values() for label in scores["recall"])
    for label in labels:
        rows[f"recall, {label}"] = [_cell(scores["recall"].get(label)) for scores in columns.values()]
    return ["metric", *columns], [[title, *cells] for title, cells in rows.items() if any(cells)]


def _cell(value: Any, name: str = "") -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):  # It was read from a file.
        value = Interval(**value)
    if isinstance(value, Interval):
        return plain_interval(value) if name in _NOT_SHARES else interval(value)
    return percent(value, 2)


def plain_interval(figure: Interval, *, sign: str = "") -> str:
    """Format a value that is not a share, and its interval."""
    return f"{figure.value:{sign}.3f} ({figure.low:{sign}.3f} to {figure.high:{sign}.3f})"


def most_confused(counts: Array, labels: Sequence[str]) -> str:
    """The most frequent confusion in a confusion matrix, as `fear labeled surprise: 20 %`; "" if there is none."""
    wrong = counts - np.diag(np.diag(counts))
    if not wrong.any():
        return ""
    actual, predicted = (int(index) for index in np.unravel_index(wrong.argmax(), wrong.shape))
    share = wrong[actual, predicted] / counts[actual].sum()
    return f"{labels[actual]} labeled {labels[predicted]}: {percent(share, 0)} %"


def print_table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", caption: str = "") -> None:
    """Print a table; in a file or a pipe, as wide as it is."""
    table = Table(*heads, title=title, caption=caption)
    for row in rows:
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 1000).print(table)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; vertical bars in cells are escaped."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def csv_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as CSV, without the end of the last line."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([heads, *rows])
    return text.getvalue().removesuffix("\n")


class ResultFiles(NamedTuple):
    """Files for the results of a command: all as JSON, and the table as .csv or .md."""

    json: Path | None = None
    table: Path | None = None

    def write(self, heads: Sequence[str], rows: Sequence[Sequence[str]], results: object) -> None:
        if self.table:
            render = {".csv": csv_table, ".md": markdown_table}[self.table.suffix]
            write_atomic(self.table, render(heads, rows) + "\n")
        if self.json:
            write_atomic(self.json, json.dumps(results, indent=2, default=to_jsonable_python) + "\n")
