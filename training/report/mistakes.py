"""Most confident mistakes of a run, which often reveal wrong labels."""

import numpy as np

from mien.data.contract import EIGHT_LABELS, Array
from mien.training.faces import FaceSet
from mien.training.report.plot import data_uri
from mien.training.report.render import Section, render
from mien.training.report.results import RunResult
from mien.training.wording import percent

SHOWN = 24


def most_confidently_wrong(predicted: Array, confidence: Array, labels: Array, *, shown: int = SHOWN) -> Array:
    """Indices of wrongly labeled faces, most confident first; at most `shown`."""
    wrong = np.flatnonzero(predicted != labels)
    order = np.argsort(-confidence[wrong], kind="stable")
    return wrong[order][:shown]


def section(result: RunResult, faces: FaceSet) -> Section:
    """Thumbnails with label, prediction and confidence."""
    chosen = most_confidently_wrong(result.predicted, result.confidence, faces.labels)
    cards = [_card(result, faces, int(index)) for index in chosen]
    wrong = int((result.predicted != faces.labels).sum())
    note = f"{len(cards)} of {wrong:,} wrong predictions, most confident first, with the label of the data set."
    return Section("mistakes", "Most confident mistakes", note, render("mistakes.html", cards=cards))


def _card(result: RunResult, faces: FaceSet, index: int) -> dict[str, str]:
    return {
        "image": data_uri(faces.crops[index]),
        "key": faces.keys[index],
        "actual": EIGHT_LABELS[faces.labels[index]],
        "votes": _votes(faces, index),
        "predicted": EIGHT_LABELS[result.predicted[index]],
        "probability": percent(result.confidence[index], 0),
    }


def _votes(faces: FaceSet, index: int) -> str:
    """Vote shares, if the set has them: `60 % neutral, 40 % sadness`."""
    if faces.votes is None:
        return ""
    shares = faces.votes[index]
    named = [
        f"{percent(shares[i], 0)} % {EIGHT_LABELS[i]}" for i in np.argsort(-shares, kind="stable") if shares[i] > 0
    ]
    return ", ".join(named)
