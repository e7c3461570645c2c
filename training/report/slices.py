"""Accuracy by annotated attribute of the person."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from mien.data.contract import Array
from mien.models.manifest import Interval
from mien.training.faces import FaceSet
from mien.training.loop import metrics
from mien.training.report import plot
from mien.training.report.render import Section, render
from mien.training.report.results import RunResult

ATTRIBUTES = ("gender", "race", "age_band")


@dataclass(frozen=True, slots=True)
class Slice:
    """Faces with the same value of an attribute; `classes` is the number of expressions that occur."""

    attribute: str
    value: str
    faces: int
    classes: int
    accuracy: Interval
    mean_class_accuracy: Interval


def share(right: int, faces: int) -> Interval:
    """A fraction with Wilson's interval, which is valid for few faces. Source: Wilson 1927."""
    bounds = binomtest(right, faces).proportion_ci(0.95, method="wilson")
    return Interval(right / faces, float(bounds.low), float(bounds.high))


def slices_of(attributes: Sequence[Mapping[str, str]], predicted: Array, labels: Array) -> list[Slice]:
    """All values of the known attributes, sorted; [] if the set has none."""
    found = []
    for attribute in ATTRIBUTES:
        values = np.array([known.get(attribute, "") for known in attributes])
        found += [
            _slice(attribute, value, np.flatnonzero(values == value), predicted, labels)
            for value in sorted({str(text) for text in values if text}, key=_natural)
        ]
    return found


def _natural(value: str) -> tuple[float, str]:
    """Sort key: leading number, as in age bands, then text."""
    number = re.match(r"\d+", value)
    return (float(number[0]) if number else float("inf"), value)


def _slice(attribute: str, value: str, chosen: Array, predicted: Array, labels: Array) -> Slice:
    actual, found = labels[chosen], predicted[chosen]
    return Slice(
        attribute=attribute,
        value=value,
        faces=len(chosen),
        classes=len(np.unique(actual)),
        accuracy=share(int((actual == found).sum()), len(chosen)),
        mean_class_accuracy=metrics.bootstrap(
            lambda i: metrics.mean_class_accuracy(metrics.confusion(found[i], actual[i])), len(chosen)
        ),
    )


def section(result: RunResult, faces: FaceSet, *, key: str) -> Section | None:
    """One figure per attribute, and a table; None if the set has no attributes."""
    found = slices_of(faces.attributes, result.predicted, faces.labels)
    if not found:
        return None
    names = dict.fromkeys(part.attribute for part in found)
    figures = [_figure([part for part in found if part.attribute == name], key) for name in names]
    note = (
        "By annotated attribute of the person, which is an annotator's guess. Accuracy with Wilson's 95 % interval; "
        "mean class accuracy with a bootstrap interval, over the expressions that occur in the slice, so slices with "
        "different expressions are not comparable. A wide interval means too few faces."
    )
    return Section("slices", "Slices by attribute", note, render("slices.html", figures=figures, slices=found))


def _figure(found: list[Slice], key: str) -> object:
    attribute = found[0].attribute
    rows = [plot.Row(part.value, f"n {part.faces:,}", (part.accuracy, part.mean_class_accuracy)) for part in found]
    label = f"Accuracy and mean class accuracy by {attribute.replace('_', ' ')}"
    names = ("accuracy, %", "mean class accuracy, %")
    kind = attribute.replace("_", "-")
    return plot.intervals(rows, name=f"{key}-{kind}", label=label, title=attribute.replace("_", " "), legend=names)
