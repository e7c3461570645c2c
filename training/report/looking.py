"""Attention maps (rollout) of a transformer on a few faces."""

import numpy as np
import torch

from mien.data.contract import EIGHT_LABELS, Array
from mien.models.attention import has_class_token, trace
from mien.models.network import Head
from mien.models.rollout import rollout
from mien.training.faces import FaceSet
from mien.training.report.plot import data_uri, heat
from mien.training.report.render import Section, render
from mien.training.report.results import RunResult
from mien.training.wording import percent


def section(result: RunResult, faces: FaceSet) -> Section | None:
    """Maps of two faces per class; None for a network without a class token."""
    if not has_class_token(result.network):
        return None
    chosen = examples(result.predicted, result.confidence, faces.labels)
    attention = trace(result.network, torch.from_numpy(faces.crops[chosen])).attention
    tokens: list[Head] = ["class", "distillation"] if result.network.backbone.distilled else ["class"]
    maps = {token: rollout(attention, head=token).numpy() for token in tokens}
    cards = [
        {
            "images": [
                ("face", data_uri(faces.crops[index])),
                *((f"{token} token", data_uri(heat(faces.crops[index], maps[token][place]))) for token in tokens),
            ],
            "key": faces.keys[index],
            "actual": EIGHT_LABELS[faces.labels[index]],
            "predicted": EIGHT_LABELS[result.predicted[index]],
            "probability": percent(result.confidence[index], 0),
        }
        for place, index in enumerate(chosen)
    ]
    note = (
        "Attention traced through all layers from the token to the patches (Abnar and Zuidema 2020); bright patches "
        "contribute most, and each map has its own scale. It shows where information came from, not why a label was "
        "predicted. For each expression: the correct face with median confidence, and the most confident mistake."
    )
    return Section("rollout", "Attention maps", note, render("looking.html", cards=cards, columns=1 + len(tokens)))


def examples(predicted: Array, confidence: Array, labels: Array) -> Array:
    """Indices of faces to show: per class, the correct one with median confidence and the most confident mistake."""
    chosen: list[int] = []
    for label in np.unique(labels):
        right = np.flatnonzero((labels == label) & (predicted == label))
        wrong = np.flatnonzero((labels == label) & (predicted != label))
        if len(right):
            chosen.append(int(right[np.argsort(confidence[right], kind="stable")[len(right) // 2]]))
        if len(wrong):
            chosen.append(int(wrong[np.argmax(confidence[wrong])]))
    return np.array(chosen)
