"""Score a released artefact on one split: the ONNX graph that users get, never the checkpoint.

    python -m training.evaluate --artefact models/artefacts/NAME --data ferplus=path/to/ferplus --split valid --json OUT

Every figure carries a 95 % bootstrap interval over faces.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
from rich.console import Console
from rich.table import Table
from scipy.special import softmax

from data.contract import LABELS, Array, label_index
from data.readers.base import Sample, open_reader
from data.tree import DatasetError
from models.manifest import ArtefactError, Interval, Manifest, SplitMetrics, load_artefact
from training import metrics
from training.metrics import Estimate

_BATCH: Final = 128
_PAIR: Final = ("happiness", "neutral")


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Figures of one artefact on one split."""

    data: str
    split: str
    faces: int
    accuracy: Estimate
    mean_class_accuracy: Estimate
    macro_f1: Estimate
    ece: Estimate
    kl_to_votes: Estimate | None
    recall: dict[str, Estimate]
    happiness_against_neutral: Estimate | None
    confusion: list[list[int]]

    def shares(self) -> list[tuple[str, Estimate]]:
        """The figures that are shares of 1, by the names that people read, without those the split cannot give."""
        named: list[tuple[str, Estimate | None]] = [
            ("accuracy", self.accuracy),
            ("mean class accuracy", self.mean_class_accuracy),
            ("macro-F1", self.macro_f1),
            (f"ECE, {metrics.ECE_BINS} bins", self.ece),
            ("happiness against neutral", self.happiness_against_neutral),
            *((f"recall, {label}", estimate) for label, estimate in self.recall.items()),
        ]
        return [(name, estimate) for name, estimate in named if estimate is not None]

    def for_manifest(self) -> SplitMetrics:
        """The part that the manifest carries."""
        return SplitMetrics(
            data=self.data,
            split=self.split,
            faces=self.faces,
            accuracy=_interval(self.accuracy),
            mean_class_accuracy=_interval(self.mean_class_accuracy),
            macro_f1=_interval(self.macro_f1),
            ece=_interval(self.ece),
            recall={label: _interval(estimate) for label, estimate in self.recall.items()},
        )


def _interval(estimate: Estimate) -> Interval:
    return Interval(value=estimate.value, low=estimate.low, high=estimate.high)


def open_graph(path: Path, *, threads: int = 0, spinning: bool = True) -> onnxruntime.InferenceSession:
    """Open an ONNX graph on the CPU; `threads` 0 takes every core, and serving lets idle ones rest instead of spin."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def run_graph(session: onnxruntime.InferenceSession, crops: Array) -> Array:
    """Logits (N, 7) float32 of crops (N, 112, 112, 3) uint8, RGB."""
    name = session.get_inputs()[0].name
    batches = [np.ascontiguousarray(crops[start : start + _BATCH]) for start in range(0, len(crops), _BATCH)]
    return np.concatenate([session.run(["logits"], {name: batch})[0] for batch in batches])


def score(
    probabilities: Array, labels: Array, *, votes: Array | None, data: str, split: str, calibrated: Array | None = None
) -> Evaluation:
    """Compute every figure with its interval.

    Args:
        probabilities: (N, 7), as the service gives them.
        labels: (N,) class indices.
        votes: (N, 7) vote shares where the set has them.
        data, split: what to call them.
        calibrated: (N, 7) probabilities for the ECE where `probabilities` were calibrated on these very faces.
    """
    predicted, faces = probabilities.argmax(axis=1), len(labels)
    for_ece = probabilities if calibrated is None else calibrated

    def over_confusion(figure: Callable[[Array], float]) -> Estimate:
        return metrics.bootstrap(lambda i: figure(metrics.confusion(predicted[i], labels[i])), faces)

    def recall_of(index: int) -> Callable[[Array], float]:
        return lambda counts: float(metrics.recalls(counts)[index])

    present = [index for index in range(len(LABELS)) if (labels == index).any()]
    return Evaluation(
        data=data,
        split=split,
        faces=faces,
        accuracy=over_confusion(metrics.accuracy),
        mean_class_accuracy=over_confusion(metrics.mean_class_accuracy),
        macro_f1=over_confusion(metrics.macro_f1),
        ece=metrics.bootstrap(lambda i: metrics.ece(for_ece[i], labels[i]), faces),
        kl_to_votes=None
        if votes is None
        else metrics.bootstrap(lambda i: metrics.kl_to_votes(probabilities[i], votes[i]), faces),
        recall={LABELS[index]: over_confusion(recall_of(index)) for index in present},
        happiness_against_neutral=_pair(probabilities, labels),
        confusion=metrics.confusion(predicted, labels).tolist(),
    )


def _pair(probabilities: Array, labels: Array) -> Estimate | None:
    """Accuracy of choosing between happiness and neutral on the faces that are one of them."""
    first, second = (label_index(label) for label in _PAIR)
    chosen = np.flatnonzero((labels == first) | (labels == second))
    if len(chosen) == 0 or len(np.unique(labels[chosen])) < 2:
        return None
    decided = np.where(probabilities[chosen, first] > probabilities[chosen, second], first, second)
    right = decided == labels[chosen]
    return metrics.bootstrap(lambda i: float(right[i].mean()), len(chosen))


def read_split(kind: str, root: Path, split: str, options: dict[str, Any]) -> tuple[Array, Array, Array | None]:
    """Crops (N, 112, 112, 3), labels (N,) and votes (N, 7) or None. Raises: DatasetError."""
    reader = open_reader(kind, root, **options)
    samples: list[Sample] = [sample for sample in reader.samples(split) if sample.label in LABELS]
    if not samples:
        raise DatasetError(f"{kind}: split {split!r} has no face with one of {', '.join(LABELS)}")
    crops = np.stack([reader.crop(sample) for sample in samples])
    labels = np.array([label_index(str(sample.label)) for sample in samples])
    shares = [sample.distribution for sample in samples]
    votes = None if any(share is None for share in shares) else np.array(shares, dtype=np.float64)
    return crops, labels, votes


def calibrated(logits: Array, temperature: float) -> Array:
    """Probabilities (N, 7) float64 of logits (N, 7), as the service gives them."""
    probabilities: Array = softmax(logits.astype(np.float64) / temperature, axis=1)
    return probabilities


def evaluate(folder: Path, kind: str, root: Path, split: str, options: dict[str, Any]) -> tuple[Manifest, Evaluation]:
    """Verify an artefact and score its fp32 graph on one split. Raises: ArtefactError, DatasetError."""
    manifest = load_artefact(folder)
    crops, labels, votes = read_split(kind, root, split, options)
    logits = run_graph(open_graph(folder / manifest.graph("fp32").file), crops)
    probabilities = calibrated(logits, manifest.temperature)
    return manifest, score(probabilities, labels, votes=votes, data=kind, split=split)


def print_evaluation(evaluation: Evaluation, *, title: str) -> None:
    """Print the figures as a table, in per cent."""
    table = Table("figure", "value", "95 % interval", title=title)
    for name, estimate in evaluation.shares():
        table.add_row(name, f"{100 * estimate.value:.2f}", f"{100 * estimate.low:.2f} to {100 * estimate.high:.2f}")
    if evaluation.kl_to_votes is not None:
        kl = evaluation.kl_to_votes
        table.add_row("KL to votes (nats)", f"{kl.value:.3f}", f"{kl.low:.3f} to {kl.high:.3f}")
    Console().print(table)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description="Score a released artefact.")
    parser.add_argument("--artefact", type=Path, required=True, help="folder with manifest.json")
    parser.add_argument("--data", required=True, metavar="KIND=ROOT", help="a data set, e.g. ferplus=path/to/ferplus")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the reader")
    parser.add_argument("--split", default="valid")
    parser.add_argument("--json", type=Path, help="write every figure here")
    chosen = parser.parse_args(arguments)
    kind, equals, root = chosen.data.partition("=")
    if not equals:
        parser.error(f"--data {chosen.data!r}: expected KIND=ROOT, for example ferplus=path/to/ferplus")
    for option in chosen.option:
        if "=" not in option:
            parser.error(f"--option {option!r}: expected KEY=VALUE, for example exclude_pixels_of=valid")
    options = dict(option.split("=", 1) for option in chosen.option)
    try:
        manifest, evaluation = evaluate(chosen.artefact, kind, Path(root), chosen.split, options)
    except (ArtefactError, DatasetError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print_evaluation(evaluation, title=f"{manifest.name} on {kind} {chosen.split}, {evaluation.faces} faces")
    if chosen.json:
        result = {"artefact": manifest.name, "labels": LABELS, **asdict(evaluation)}
        chosen.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
