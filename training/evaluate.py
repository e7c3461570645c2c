"""How good a model is on some faces: `open_model`, `scores`, and `gains`, paired by face.

    mien evaluate models/artifacts/NAME --data ferplus=path/to/ferplus --split valid --json OUT
    mien compare models/artifacts/BEFORE runs/AFTER --data folders=sets/folders --split valid [--prior natural]

An artifact is evaluated as it is served: by its ONNX graph, with temperature, with and without the correction for rare
classes, and softened by the quality of the crops. A run has none of these. Intervals are of 95 % (training/metrics.py).
--corruptions also measures corrupted faces (training/robustness.py).
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import onnxruntime
import torch
from torch import nn

from mien.data.contract import LABELS, Array
from mien.data.quality import soften, softmax
from mien.models.manifest import CROPS, LOGITS, MANIFEST_NAME, Manifest, Precision, Prior, load_artifact, read_report
from mien.models.network import Head, select_head
from mien.training import metrics
from mien.training.data import Split
from mien.training.run import read_run_info
from mien.training.weights import load_trained

_BATCH: Final = 128
_CPU: Final = torch.device("cpu")
PRIORS: Final[tuple[Prior, ...]] = get_args(Prior)


def open_graph(graph: Path) -> onnxruntime.InferenceSession:
    """Open an ONNX graph on all cores of the CPU."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors: it warns about inputs with defaults
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def run_graph(session: onnxruntime.InferenceSession, crops: Array) -> Array:
    """Logits (N, K) float32 of crops (N, 112, 112, 3) uint8, RGB."""
    batches = [np.ascontiguousarray(crops[start : start + _BATCH]) for start in range(0, len(crops), _BATCH)]
    return np.concatenate([session.run([LOGITS], {CROPS: batch})[0] for batch in batches])


def predict(network: nn.Module, crops: Array, *, head: Head, device: torch.device = _CPU) -> Array:
    """Logits (N, K) of a head in fp32; leaves the network in eval mode."""
    network.eval()
    logits = []
    for start in range(0, len(crops), _BATCH):
        pixels = torch.from_numpy(np.array(crops[start : start + _BATCH])).to(device)
        with torch.no_grad():
            logits.append(select_head(network(pixels), head).cpu().numpy())
    return np.concatenate(logits)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A released artifact, by one of its graphs, or the best weights of a run, which have no calibration.

    Attributes:
        logits: (N, K) float32 of crops (N, 112, 112, 3) uint8, RGB.
        trained_with: hash of each data set's index, by kind/split.
    """

    name: str
    labels: tuple[str, ...]
    logits: Callable[[Array], Array]
    manifest: Manifest | None
    trained_with: Mapping[str, str]

    @property
    def priors(self) -> tuple[Prior, ...]:
        """Priors that make a difference."""
        return PRIORS if self.manifest else ("natural",)

    def probabilities(self, logits: Array, faces: Split, prior: Prior) -> Array:
        """Probabilities (N, K) of faces by the logits of their crops, as served."""
        if self.manifest is None:
            return softmax(logits)
        return softened(self.manifest.probabilities(logits, prior), faces)

    def warn(self, faces: Split) -> str:
        """Print a warning, and return it, if the faces may be some that the model was trained on."""
        if warning := faces.changed_since(self.trained_with):
            print(f"warning: {self.name}: {warning}", file=sys.stderr)
        return warning


def open_model(folder: Path, precision: Precision = "fp32") -> Model:
    """Open a verified artifact or a run, which has no precisions. Raises: ArtifactError, RunError."""
    if (folder / MANIFEST_NAME).exists():
        return open_released(folder, load_artifact(folder), precision)
    network, head, labels = load_trained(folder)
    logits = partial(predict, network, head=head)
    return Model(f"run {folder.name}", labels, logits, None, read_run_info(folder)["data"])


def open_released(folder: Path, manifest: Manifest, precision: Precision = "fp32") -> Model:
    """Open a graph of an artifact that is verified or not complete yet."""
    logits = partial(run_graph, open_graph(folder / manifest.graph(precision).file))
    name = manifest.name if precision == "fp32" else f"{manifest.name}, {precision}"
    return Model(name, manifest.labels, logits, manifest, read_report(folder).get("data", {}))


def softened(probabilities: Array, faces: Split) -> Array:
    """Soften probabilities (N, K) by the quality of the crops, as in serving."""
    return np.stack([soften(of_face, seen) for of_face, seen in zip(probabilities, faces.quality, strict=True)])


def scores(
    faces: Split,
    probabilities: Array,
    *,
    prior: Prior = "natural",
    calibrated: Array | None = None,
    threshold: float | None = None,
) -> dict[str, Any]:
    """All metrics of N faces, with their intervals; the same in tables, in `--json` and in the report of an artifact.

    Args:
        faces: with the classes of the model.
        probabilities: (N, K), as in serving.
        calibrated: (N, K) cross-fitted probabilities for ECE, losses and threshold, if calibration was fitted here.
        threshold: the confidence threshold of the model, to judge what it keeps.
    """
    calibrated, labels = probabilities if calibrated is None else calibrated, faces.labels
    predicted = probabilities.argmax(axis=1)
    counts = metrics.confusion(predicted, labels, len(faces.classes))
    found: dict[str, Any] = {
        "data": faces.kind,
        "split": faces.name,
        "prior": prior,
        "faces": len(labels),
        "accuracy": metrics.share(predicted == labels),
        "mean_class_accuracy": metrics.mean_class_interval(counts),
        "macro_f1": metrics.bootstrap(
            lambda of, actual: metrics.macro_f1(metrics.confusion(of, actual, len(faces.classes))), predicted, labels
        )[0],
        "nll": metrics.mean(metrics.negative_log_likelihood(calibrated, labels)),
        "brier": metrics.mean(metrics.brier(calibrated, labels)),
        "ece": metrics.ece(calibrated, labels),
    }
    if threshold is not None:
        kept = calibrated.max(axis=1) >= threshold
        found |= {"kept": metrics.share(kept), "kept_accuracy": metrics.share((predicted == labels)[kept])}
    if faces.votes is not None:
        found["kl_to_votes"] = metrics.mean(metrics.kl_to_votes(calibrated, faces.votes))
    return found | {
        "recall": {faces.classes[index]: recall for index, recall in metrics.recall_intervals(counts).items()},
        "confusion": counts.tolist(),
    }


def scores_of_model(
    model: Model, faces: Split, logits: Array, calibrated: Mapping[Prior, Array] | None = None
) -> list[dict[str, Any]]:
    """Scores of a model's logits (N, K) by prior, natural first; see `scores`."""
    threshold = model.manifest.confidence_threshold if model.manifest else None
    found = []
    for prior in model.priors:
        fitted, probabilities = (calibrated or {}).get(prior), model.probabilities(logits, faces, prior)
        found.append(scores(faces, probabilities, prior=prior, calibrated=fitted, threshold=threshold))
    return found


def gains(before: Array, after: Array, labels: Array, classes: tuple[str, ...] = LABELS) -> dict[str, Any]:
    """Gains of a model over another one, paired by face, under the names of `scores`; a gain of nll is negative.

    Args:
        before, after: (N, K) probabilities.
    Returns: intervals of nll, accuracy, mean class accuracy and recalls, except those of fewer than
        `metrics.MIN_FACES` faces.
    """
    present = np.unique(labels)

    def shares(predicted: Array, labels: Array) -> Array:
        counts = metrics.confusion(predicted, labels, len(classes))
        with np.errstate(invalid="ignore"):  # A resample may lack a class.
            recalls = (np.diag(counts) / counts.sum(axis=1))[present]
        return np.array([np.trace(counts) / len(labels), np.nanmean(recalls), *recalls])

    losses = [metrics.negative_log_likelihood(side, labels) for side in (before, after)]
    accuracy, mean_class_accuracy, *recalls = metrics.bootstrap(
        lambda before, after, actual: shares(after, actual) - shares(before, actual),
        before.argmax(axis=1), after.argmax(axis=1), labels,
    )  # fmt: skip
    found: dict[str, Any] = {"nll": metrics.mean(losses[1] - losses[0])}
    if len(labels) >= metrics.MIN_FACES:
        found |= {"accuracy": accuracy, "mean_class_accuracy": mean_class_accuracy}
    counts = np.bincount(labels)[present]
    recall = {
        classes[index]: gain
        for index, gain, count in zip(present, recalls, counts, strict=True)
        if count >= metrics.MIN_FACES
    }
    return found | {"recall": recall}


def predictions_table(faces: Split, probabilities: Array) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row per face: its key, its label, the predicted one, and the probability of each class."""
    heads = ["face", "label", "predicted", *(f"p_{name}" for name in faces.classes)]
    rows = [
        [key, faces.classes[label], faces.classes[row.argmax()], *(f"{share:.6f}" for share in row)]
        for key, label, row in zip(faces.keys, faces.labels, probabilities, strict=True)
    ]
    return heads, rows
