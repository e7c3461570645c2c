"""Reliability diagrams before and after temperature scaling, and risk-coverage curves."""

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from mien.data.contract import Array
from mien.models.manifest import Interval
from mien.training.loop import metrics
from mien.training.report import plot
from mien.training.report.render import Section, side_by_side
from mien.training.report.results import RunResult
from mien.training.wording import interval, percent


@dataclass(frozen=True, slots=True)
class Bins:
    """Faces by confidence of the top class, in equal-width bins: (bins,) each; means of an empty bin are nan."""

    edges: Array  # (bins + 1,)
    counts: Array
    confidence: Array
    accuracy: Array


def bins_of(probabilities: Array, labels: Array) -> Bins:
    """Bins as in `metrics.ece`, from (N, 7) probabilities and (N,) class indices."""
    bins = metrics.ECE_BINS
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == labels
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    counts = np.bincount(index, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(index, weights=values, minlength=bins) / counts for values in (confidence, right)]
    return Bins(np.linspace(0, 1, bins + 1), counts, *means)


def reliability(result: RunResult, labels: Array, *, key: str) -> Section:
    """Two diagrams, before and after temperature scaling."""
    body = side_by_side(
        _diagram(bins_of(result.raw, labels), "before", result.ece_raw, f"{key}-before"),
        _diagram(bins_of(result.probabilities, labels), "after", result.evaluation.ece, f"{key}-after"),
    )
    note = (
        f"Accuracy (top of the blue and green) of the faces in each of {metrics.ECE_BINS} confidence bins; a "
        f"calibrated model follows the diagonal. Below, the number of faces per bin. Temperature "
        f"{result.temperature:.3f}, fitted on {result.fitted_on}."
    )
    return Section("reliability", "Reliability before and after temperature scaling", note, body)


def _diagram(bins: Bins, when: str, ece: Interval, name: str) -> Markup:
    width = np.diff(bins.edges)
    used = bins.counts > 0
    with plot.style():
        drawn = plot.figure(3.6, 3.4)
        axes, below = drawn.subplots(2, 1, sharex=True, height_ratios=[4, 1])
        place = bins.edges[:-1][used]
        bar = {"width": width[used], "align": "edge"}
        accuracy, confidence = bins.accuracy[used], bins.confidence[used]
        both, gap = np.minimum(accuracy, confidence), confidence - accuracy
        axes.bar(place, both, color=plot.SERIES[0], alpha=0.5, **bar)
        axes.bar(place, np.maximum(gap, 0), bottom=both, color=plot.SERIES[1], alpha=0.6, label="overconfident", **bar)
        axes.bar(
            place, np.maximum(-gap, 0), bottom=both, color=plot.SERIES[2], alpha=0.6, label="underconfident", **bar
        )
        axes.plot([0, 1], [0, 1], color=plot.MUTED, linestyle="--", linewidth=1)
        axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy, %", title=f"{when}: ECE {interval(ece, 1)} %")
        drawn.legend(loc="outside lower left", ncols=2)
        below.bar(place, bins.counts[used], color=plot.MUTED, alpha=0.6, **bar)
        below.set(xlabel="confidence, %", ylabel="faces")
        plot.percent_axis(axes.yaxis)
        plot.percent_axis(below.xaxis)
    return plot.svg(drawn, name=name, label=f"Reliability {when} temperature scaling: ECE {interval(ece, 1)} percent")


@dataclass(frozen=True, slots=True)
class RiskCoverage:
    """Error rate as a function of coverage, with the most confident faces first; (N,) each."""

    coverage: Array
    risk: Array


def risk_coverage(probabilities: Array, labels: Array) -> RiskCoverage:
    """Compute the risk-coverage curve. Source: Geifman and El-Yaniv 2017."""
    order = np.argsort(-probabilities.max(axis=1), kind="stable")
    wrong = (probabilities.argmax(axis=1) != labels)[order]
    labeled = np.arange(1, len(labels) + 1)
    return RiskCoverage(labeled / len(labels), np.cumsum(wrong) / labeled)


def abstaining(result: RunResult, labels: Array, *, key: str) -> Section:
    """Risk-coverage curve with the threshold for 95 % selective accuracy."""
    curve = risk_coverage(result.probabilities, labels)
    labeled = result.confidence >= result.threshold
    covered = float(labeled.mean())
    with plot.style():
        drawn = plot.figure(4.6, 3.0)
        axes = drawn.subplots()
        axes.plot(curve.coverage, curve.risk, **plot.series(0))
        axes.axhline(1 - metrics.WANTED_ACCURACY, color=plot.MUTED, linestyle="--", linewidth=1)
        axes.axvline(covered, color=plot.SERIES[1], linestyle=":", linewidth=1.4)
        axes.set(xlim=(0, 1), xlabel="coverage, %", ylabel="error, %")
        axes.set_ylim(bottom=0)
        plot.percent_axis(axes.xaxis)
        plot.percent_axis(axes.yaxis)
    sentence = _sentence(result, labels, labeled)
    figure = plot.svg(drawn, name=f"{key}-risk", label=f"Risk against coverage. {sentence}")
    return Section("abstaining", "Accuracy with abstention", sentence, side_by_side(figure))


def _sentence(result: RunResult, labels: Array, labeled: Array) -> str:
    everything = f"Accuracy over all faces is {percent(result.evaluation.accuracy.value)} %."
    if not labeled.any():
        return f"{everything} No confidence threshold reaches {percent(metrics.WANTED_ACCURACY, 0)} % accuracy."
    right = (result.predicted == labels)[labeled].mean()
    return (
        f"{everything} At a confidence threshold of {percent(result.threshold)} %, {percent(labeled.mean())} % of the "
        f"faces are labeled, {percent(float(right))} % of them correctly (threshold for "
        f"{percent(metrics.WANTED_ACCURACY, 0)} %, fitted on {result.fitted_on.split(';')[0]})."
    )
