"""Model card of an artifact: description, intended use, training data, metrics and limitations."""

import shlex
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any, Final

import numpy as np

from mien.data.readers.base import readers
from mien.models.manifest import Interval, Manifest, ReasonLimit, SplitMetrics
from mien.training.wording import interval, markdown_table, metric_cells, most_confused, percent

_INTENDED: Final = (
    "Labeling the visible expression of faces in photos and video, with calibrated scores, for research, photo "
    "archives and creative tools whose users are informed about it."
)
_NOT_FOR: Final = (
    "It labels expressions, not feelings: a smile does not prove joy. It must not be used to judge people or to infer "
    "emotions at work or in education (EU AI Act, Article 5(1)(f)); people exposed to it must be informed (Article "
    "50(3))."
)
_CHOSEN_ON: Final = (
    "`balanced`, the default, adds the manifest's prior correction to the scaled logits to correct for expressions "
    "that are rare in the data. `natural` does not (`--prior natural`, `MIEN_PRIOR=natural`). Clean faces resemble no "
    "face of the official train split (16x16 thumbnails correlate below 0.95). The epoch, the head, the temperature, "
    "the correction and the confidence threshold were selected on the validation split; ECE and coverage are "
    "cross-fitted: each face is scored with a temperature fitted on other folds."
)


def render(manifest: Manifest) -> str:
    """Render the card as Markdown; all metrics are from the manifest, the validation split first."""
    sets = [name for name in manifest.data_index_sha256 if name not in manifest.learned_from]
    selected_on = "\n".join(f"- {name}, index sha256 `{manifest.data_index_sha256[name][:16]}`" for name in sets)
    sections = [
        f"# Model card: {manifest.name}",
        _headline(manifest),
        _summary(manifest),
        f"## Intended use\n\n{_INTENDED}",
        f"## Prohibited uses\n\n{_NOT_FOR}",
        f"## Training data\n\n{_sources(manifest)}",
        f"## Selection\n\n{selected_on}\n\n{_CHOSEN_ON}",
        f"## Metrics\n\n{_tables(manifest.metrics, partial(_evaluate_command, manifest))}",
        *_int8(manifest),
        *_conditions(manifest),
        *_agreement(manifest),
        f"## Limitations\n\n{_limits(manifest)}",
        f"## Terms\n\n{manifest.license}",
    ]
    return "\n\n".join(sections) + "\n"


def _headline(manifest: Manifest) -> str:
    """Share of faces that can be labeled with 95 % accuracy."""
    lines, first = [], manifest.metrics[0]
    for scored in manifest.metrics:
        if scored.coverage_at_95 is not None and (scored.data, scored.split) == (first.data, first.split):
            faces = f"{'clean ' if scored.clean else ''}{scored.data} {scored.split} faces, {scored.prior}"
            lines.append(f"- **{interval(scored.coverage_at_95)} %** of {faces}")
    return "Coverage at 95 % selective accuracy:\n\n" + "\n".join(lines)


def _int8(manifest: Manifest) -> list[str]:
    graph = manifest.graphs.get("int8")
    if graph is None or not graph.metrics:
        return []
    intro = (
        "With the temperature and correction fitted to the logits of the fp32 graph on these faces, without "
        "cross-fitting. "
    )
    return ["## Metrics of the int8 graph\n\n" + intro + _tables(graph.metrics, "quantize DIR --data {}=ROOT".format)]


def _conditions(manifest: Manifest) -> list[str]:
    """Where accuracy falls, and what the reasons for doubt mean."""
    measured = manifest.conditions
    if measured is None:
        return []

    def value(number: Interval | None) -> str:
        return f"{number.value:.3g} ({number.low:.3g} to {number.high:.3g})" if number else "not reached"

    conditions = markdown_table(
        ("condition", "minus 5 points", "minus 15 points", "ECE without", "ECE"),
        [
            (name, value(at.minus_5), value(at.minus_15), percent(at.ece_unsoftened), percent(at.ece))
            for name, at in measured.conditions.items()
        ],
    )

    def row(name: str, reason: ReasonLimit) -> tuple[str, ...]:
        shares = (reason.accuracy, reason.agreement, reason.detected, reason.false)
        return (name, f"{reason.limit:.3g}", *(f"{percent(share.value, 0)} %" if share else "" for share in shares))

    heads = ("reason", "limit", "accuracy", "agreement", "detected", "false")
    reasons = markdown_table(heads, [row(name, reason) for name, reason in measured.reasons.items()])
    certain = (
        f"Of the {percent(measured.certain_share, 0)} % of faces degraded at random that are not uncertain, "
        f"{interval(measured.certain, 1)} % are right; without softening, of as many faces, "
        f"{interval(measured.certain_unsoftened, 1)} %."
    )
    return [
        f"## Conditions\n\nOf {measured.faces:,} random faces of {measured.data} {measured.split}, "
        f"{interval(measured.accuracy, 1)} % are labeled correctly (balanced). They were degraded step by step "
        f"(`{measured.command}`): the value at which accuracy is 5 and 15 points lower, with 95 % intervals, and the "
        "ECE in %, without and with softening. Softening (`softening` in the manifest) raises the temperature of a "
        "face with its blur, its yaw and how covered eyes or mouth look, and keeps its label; it was fitted on half of "
        "the faces, and the ECE is of the others. A width is that of the face's box; blur is measured in pixels of the "
        "crop beyond what the size explains.\n\n" + conditions,
        "A face has a reason for doubt if its value is beyond the limit. Accuracy, and agreement with the label before "
        "degrading, are of faces degraded at random; detected: of those degraded beyond the limit; false: of those not "
        "degraded.\n\n" + reasons,
        certain,
    ]


def _agreement(manifest: Manifest) -> list[str]:
    """How well the expected votes are met, and for whom they stand."""
    fitted = manifest.agreement
    if fitted is None:
        return []
    tenths = markdown_table(
        ("faces", "agreement", "votes"),
        [(f"{part.faces:,}", percent(part.expected), interval(part.votes, 1)) for part in fitted.reliability],
    )
    degraded = markdown_table(
        ("condition", "faces", "agreement, not softened", "agreement", "votes"),
        [
            (
                name,
                f"{part.faces:,}",
                percent(part.expected_unsoftened),
                percent(part.expected),
                interval(part.votes, 1),
            )
            for name, part in fitted.degraded.items()
        ],
    )
    intro = (
        "The expected share of people who would choose the label, of those who choose one of the labels. Fitted to the "
        f"votes of about ten raters for each of {fitted.faces:,} faces of {fitted.data} {fitted.split}, also without a "
        f"majority (`{fitted.command}`), and cross-fitted for these results. Mean error per face: "
        f"{interval(fitted.error, 1)} points; {interval(fitted.error_of_mean, 1)}, if the agreement of all faces were "
        f"its mean. Correlation {fitted.correlation.value:.2f}. By tenths of the agreement, in %, with 95 % intervals:"
    )
    under = (
        f"Votes are softened by {percent(fitted.softening, 0)} % of the softening of probabilities: fitted on random "
        "faces that were degraded step by step. Of others, all steps together, against the votes for the faces "
        "before degrading:"
    )
    limits = "It stands for such raters and such faces, not for other cultures or cameras; see the limitations."
    return [f"## Agreement\n\n{intro}\n\n{tenths}", f"{under}\n\n{degraded}", limits]


def _summary(manifest: Manifest) -> str:
    color = "luminance, computed inside the graph" if manifest.color == "luminance" else "RGB"
    labels = manifest.labels
    correction = ", ".join(f"{offset:+.2f}" for offset in manifest.prior_correction)
    rows = [
        ("parameters", f"{manifest.parameters:,}"),
        ("input", f"`{manifest.input.name}` uint8 (N, 112, 112, 3) RGB; the network uses {color}"),
        ("output", f"`{manifest.output.name}` (N, {len(labels)}), before temperature; order: {', '.join(labels)}"),
        ("head", manifest.head),
        ("temperature", f"{manifest.temperature}"),
        ("prior correction", correction),
        ("uncertain below", f"{manifest.confidence_threshold}"),
        ("contract", f"`{manifest.contract_id}`"),
        ("trained at commit", f"`{manifest.commit}`"),
    ]
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {text} |" for name, text in rows)


def _sources(manifest: Manifest) -> str:
    learned = [f"- {name}, index sha256 `{sha256[:16]}`" for name, sha256 in manifest.learned_from.items()]
    hashes = {name: f"sha256 `{sha256[:16]}`" for name, sha256 in manifest.weights_from.items()}
    weights = [
        f"- weights of {name}: {'; '.join(filter(None, (hashes.get(name), manifest.weight_terms.get(name))))}"
        for name in hashes | manifest.weight_terms
    ]
    return "\n".join(learned + weights)


def _evaluate_command(manifest: Manifest, kind: str, split: str) -> str:
    """Command for a split, with the options of the reader if it is the validation split."""
    data: Any = manifest.recipe["data"]
    valid, options = data["valid"], ""
    for name, value in valid["options"].items() if (kind, split) == (valid["kind"], valid["split"]) else ():
        parts = [f"{key}={of}" for key, of in value.items()] if isinstance(value, dict) else value
        text = ",".join(map(str, parts)) if isinstance(parts, list) else parts
        options += f" --option {shlex.quote(f'{name}={text}')}"
    return f"evaluate --artifact DIR --data {kind}=ROOT --split {split}{options}"


def _limits(manifest: Manifest) -> str:
    """Limitations of the training sets, and the most frequent confusion."""
    kinds = dict.fromkeys(name.split("/")[0] for name in manifest.learned_from)
    limits, scored = [readers()[kind].limits for kind in kinds if kind in readers()], manifest.metrics[0]
    if worst := most_confused(np.array(scored.confusion), manifest.labels):
        place = f"of the faces on {scored.data} {scored.split}, {scored.prior}"
        limits.append(f"The most frequent confusion is {worst} {place}.")
    return " ".join(limits)


def _tables(scored: tuple[SplitMetrics, ...], command: Callable[[str, str], str]) -> str:
    """One table per split, with one column per prior and subset."""
    tables = []
    for (data, split), group in groupby(scored, key=lambda column: (column.data, column.split)):
        columns = list(group)
        heads = [f"{'clean, ' if column.clean else ''}{column.prior}, {column.faces:,} faces" for column in columns]
        rows = [metric_cells(column) for column in columns]
        cells = [(name, *(row.get(name, "") for row in rows)) for name in rows[0]]
        title = f"{data}, {split} split, shares in % (95 % interval), by `mien {command(data, split)}`:"
        tables.append(f"{title}\n\n{markdown_table(('metric', *heads), cells)}")
    return "\n\n".join(tables)
