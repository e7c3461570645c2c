"""The most confident mistakes of a run; often the label is wrong, and the picture shows it."""

import numpy as np

from data.contract import LABELS, Array
from training.report.faces import FaceSet
from training.report.plot import picture
from training.report.render import Section, percent, render
from training.report.results import RunResult

SHOWN = 24


def most_confidently_wrong(predicted: Array, confidence: Array, labels: Array, *, shown: int = SHOWN) -> Array:
    """Indices of the wrong faces, the most confident first; at most `shown`."""
    wrong = np.flatnonzero(predicted != labels)
    order = np.argsort(-confidence[wrong], kind="stable")
    return wrong[order][:shown]


def section(result: RunResult, faces: FaceSet) -> Section:
    """Thumbnails with what the set says, what the run says, and how sure it is."""
    chosen = most_confidently_wrong(result.predicted, result.confidence, faces.labels)
    cards = [_card(result, faces, int(index)) for index in chosen]
    wrong = int((result.predicted != faces.labels).sum())
    note = f"{len(cards)} of {wrong:,} wrong predictions, the most confident first, with the label of the set."
    return Section("mistakes", "Most confidently wrong", note, render("mistakes.html", cards=cards))


def _card(result: RunResult, faces: FaceSet, index: int) -> dict[str, str]:
    return {
        "image": picture(faces.crops[index]),
        "key": faces.keys[index],
        "actual": LABELS[faces.labels[index]],
        "votes": _votes(faces, index),
        "predicted": LABELS[result.predicted[index]],
        "probability": percent(result.confidence[index], 0),
    }


def _votes(faces: FaceSet, index: int) -> str:
    """How the voters were split, where the set says it: `60 % neutral, 40 % sadness`."""
    if faces.votes is None:
        return ""
    shares = faces.votes[index]
    named = [f"{percent(shares[i], 0)} % {LABELS[i]}" for i in np.argsort(-shares, kind="stable") if shares[i] > 0]
    return ", ".join(named)
