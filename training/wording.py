"""Percentages, their intervals, and confusions in tables and cards, and files of tables."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from pydantic_core import to_jsonable_python
from rich.console import Console
from rich.table import Table

from mien.data.atomic import write_atomic
from mien.data.contract import Array
from mien.models.manifest import Interval, SplitMetrics

if TYPE_CHECKING:
    import jinja2


def percent(share: float, digits: int = 1, *, sign: str = "") -> str:
    """Format a share as a percentage, without the percent sign; `sign="+"` shows the sign of gains."""
    return f"{100 * share:{sign}.{digits}f}"


def interval(figure: Interval, digits: int = 2, *, sign: str = "") -> str:
    """Format a share and its interval as percentages."""
    value, low, high = (percent(share, digits, sign=sign) for share in (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high})"


def title_of(scores: SplitMetrics) -> str:
    """Heading of a column: prior and number of faces."""
    return f"{scores.prior}, {scores.faces:,} faces"


def scores_table(columns: Mapping[str, SplitMetrics]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: metrics with their 95 % intervals, shares in percent."""
    cells = [_metric_cells(scores) for scores in columns.values()]
    return ["metric", *columns], [[name, *(column.get(name, "") for column in cells)] for name in cells[0]]


def _metric_cells(scored: SplitMetrics) -> dict[str, str]:
    """Metrics by display name, shares in percent with their intervals; those that a split lacks are left out."""
    shares = {
        "accuracy": scored.accuracy,
        "mean class accuracy": scored.mean_class_accuracy,
        "macro-F1": scored.macro_f1,
        "coverage at 95 % selective accuracy": scored.coverage_at_95,
        **{f"recall, {label}": recall for label, recall in scored.recall.items()},
    }
    losses = {"negative log likelihood": scored.nll, "Brier score": scored.brier}
    votes = {"KL to votes (nats)": getattr(scored, "kl_to_votes", None)}
    return {
        **{name: interval(figure) for name, figure in shares.items() if figure is not None},
        **{name: plain_interval(figure) for name, figure in losses.items() if figure is not None},
        "ECE, 15 bins": percent(scored.ece, 2),
        **{name: plain_interval(figure) for name, figure in votes.items() if figure is not None},
    }


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


def markdown_template(path: Path) -> "jinja2.Template":
    """Template of a card."""
    import jinja2

    environment = jinja2.Environment(  # noqa: S701 (Markdown)
        loader=jinja2.FileSystemLoader(path.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"interval": interval, "percent": percent}
    return environment.get_template(path.name)


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
