"""The model card that travels with an artefact: what it is, what it learned from, how well, what it is not for."""

from typing import Final

import numpy as np

from data.contract import LABELS
from data.readers.base import readers
from models.manifest import Manifest
from training.evaluate import Evaluation
from training.metrics import Estimate

_INTENDED: Final = (
    "Labelling the visible expression of faces in photos and video, with calibrated scores, for research, photo "
    "archives and creative tools whose users know of it."
)
_NOT_FOR: Final = (
    "It reads expressions, not feelings: a smile is not happiness. It must not be used to judge people, nor to infer "
    "emotions at work or in education (EU AI Act, Article 5(1)(f)); people exposed to it must be informed (Article "
    "50(3))."
)
_CHOSEN_ON: Final = (
    "The validation split chose the epoch, the head, the temperature and the abstain threshold; its ECE is measured on "
    "folds that the temperature was not fitted on."
)


def render(manifest: Manifest, evaluations: list[Evaluation]) -> str:
    """Markdown text of the card; every figure in it comes from `evaluations`, the validation split first."""
    sections = [
        f"# Model card: {manifest.name}",
        _summary(manifest),
        f"## Intended use\n\n{_INTENDED}",
        f"## Not for\n\n{_NOT_FOR}",
        f"## Learned from\n\n{_sources(manifest)}",
        "## Figures\n\n" + "\n\n".join(_figures(evaluation) for evaluation in evaluations),
        _CHOSEN_ON,
        f"## Known limits\n\n{_limits(manifest)} {_most_confused(evaluations[0])}",
        f"## Terms\n\n{manifest.licence}",
    ]
    return "\n\n".join(sections) + "\n"


def with_int8(text: str, evaluation: Evaluation) -> str:
    """Add the int8 graph's figures to a card, before its limits."""
    table = _table(evaluation, f"training.quantise DIR --data {evaluation.data}=ROOT")
    section = f"## Figures in int8\n\nWith the temperature that was fitted to fp32's answers. {table}\n\n"
    before, limits, after = text.partition("## Known limits")
    return before + section + limits + after


def _most_confused(evaluation: Evaluation) -> str:
    counts = np.array(evaluation.confusion)
    np.fill_diagonal(counts, 0)
    actual, predicted = np.unravel_index(counts.argmax(), counts.shape)
    share = counts[actual, predicted] / max(1, sum(evaluation.confusion[int(actual)]))
    return (
        f"The most frequent confusion is {LABELS[int(actual)]} read as {LABELS[int(predicted)]}: {100 * share:.0f} % "
        f"of its faces on {evaluation.data} {evaluation.split}."
    )


def _summary(manifest: Manifest) -> str:
    colour = "luminance, computed inside the graph" if manifest.colour == "luminance" else "RGB"
    rows = [
        ("parameters", f"{manifest.parameters:,}"),
        ("input", f"`{manifest.input.name}` uint8 (N, 112, 112, 3) RGB; the network sees {colour}"),
        ("output", f"`{manifest.output.name}` (N, 7), before temperature; order: {', '.join(manifest.labels)}"),
        ("head", manifest.head),
        ("temperature", f"{manifest.temperature}"),
        ("uncertain below", f"{manifest.abstain_threshold}"),
        ("contract", f"`{manifest.contract_id}`"),
        ("trained at commit", f"`{manifest.commit}`"),
    ]
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {name} | {text} |" for name, text in rows)


def _sources(manifest: Manifest) -> str:
    lines = [f"- {name}, index sha256 `{sha256[:16]}`" for name, sha256 in manifest.data_index_sha256.items()]
    return "\n".join(lines)


def _limits(manifest: Manifest) -> str:
    """What the sets that it learned from say of themselves."""
    kinds = dict.fromkeys(name.split("/")[0] for name in manifest.data_index_sha256 if name.endswith("/train"))
    return " ".join(readers()[kind].limits for kind in kinds if kind in readers())


def _figures(evaluation: Evaluation) -> str:
    command = f"training.evaluate --artefact DIR --data {evaluation.data}=ROOT --split {evaluation.split}"
    return _table(evaluation, command)


def _table(evaluation: Evaluation, command: str) -> str:
    lines = [f"| {name} | {_percent(estimate)} |" for name, estimate in evaluation.shares()]
    title = f"{evaluation.data}, {evaluation.split} split, {evaluation.faces:,} faces"
    return f"{title}, by `python -m {command}`:\n\n| figure | % (95 % interval) |\n| --- | --- |\n" + "\n".join(lines)


def _percent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:.2f} ({100 * estimate.low:.2f} to {100 * estimate.high:.2f})"
