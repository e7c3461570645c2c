"""Model card of an artifact: description, intended use, training data, metrics and limitations; text: card.md.jinja."""

import shlex
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from mien.data.readers.base import kinds, reader_of
from mien.models.manifest import Manifest, SplitMetrics
from mien.training.wording import markdown_table, markdown_template, most_confused, scores_table, title_of


def render(manifest: Manifest) -> str:
    """Render the card as Markdown; all metrics are from the manifest, the validation split first."""
    first, int8 = manifest.metrics[0], manifest.graphs.get("int8")
    return markdown_template(Path(__file__).with_name("card.md.jinja")).render(
        m=manifest,
        headline=[
            scored
            for scored in manifest.metrics
            if scored.coverage_at_95 is not None and (scored.data, scored.split) == (first.data, first.split)
        ],
        metrics=_tables(manifest.metrics, partial(_evaluate_command, manifest)),
        int8_metrics=_tables(int8.metrics, "quantize DIR --data {}=ROOT".format) if int8 else "",
        limitations=_limitations(manifest),
    )


def _evaluate_command(manifest: Manifest, kind: str, split: str) -> str:
    """Command for a split, with the options of the reader if it is the validation split."""
    data: Any = manifest.recipe["data"]
    valid, options = data["valid"], ""
    for name, value in valid["options"].items() if (kind, split) == (valid["kind"], valid["split"]) else ():
        parts = [f"{key}={of}" for key, of in value.items()] if isinstance(value, dict) else value
        text = ",".join(map(str, parts)) if isinstance(parts, list) else parts
        options += f" --option {shlex.quote(f'{name}={text}')}"
    return f"evaluate --artifact DIR --data {kind}=ROOT --split {split}{options}"


def _limitations(manifest: Manifest) -> str:
    """Limitations of the training sets, and the most frequent confusion."""
    names = dict.fromkeys(name.split("/")[0] for name in manifest.learned_from)
    limits, scored = [reader_of(kind).limits for kind in names if kind in kinds()], manifest.metrics[0]
    if worst := most_confused(np.array(scored.confusion), manifest.labels):
        place = f"of the faces on {scored.data} {scored.split}, {scored.prior}"
        limits.append(f"The most frequent confusion is {worst} {place}.")
    return " ".join(limits)


def _tables(scored: tuple[SplitMetrics, ...], command: Callable[[str, str], str]) -> str:
    """One table per split, with one column per prior and subset."""
    tables = []
    for (data, split), group in groupby(scored, key=lambda column: (column.data, column.split)):
        table = markdown_table(*scores_table({title_of(column): column for column in group}))
        title = f"{data}, {split} split, shares in % (95 % interval), by `mien {command(data, split)}`:"
        tables.append(f"{title}\n\n{table}")
    return "\n\n".join(tables)
