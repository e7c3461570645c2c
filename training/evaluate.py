"""Evaluation of a released artifact on one split: of the ONNX graph that users get, never of the checkpoint.

    mien evaluate --artifact models/artifacts/NAME --data ferplus=path/to/ferplus --split valid --json OUT

Metrics are reported with and without the correction for rare classes, on the complete split and, if the reader can
detect near-duplicates, on its clean faces: those that resemble no face of the train split. Intervals are of 95 %
(training/metrics.py). --corruptions also measures corrupted faces (training/robustness.py), --agreement the expected
votes (training/release/agreement.py).
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, get_args

import numpy as np
import onnxruntime
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from mien.data.contract import LABELS, Array, softmax
from mien.data.tree import DatasetError
from mien.models.backbones import Heads
from mien.models.manifest import MANIFEST_NAME, Interval, Manifest, Prior, SplitMetrics, VotedFaces, load_artifact
from mien.models.network import Head, select_head
from mien.training import metrics, robustness
from mien.training.config import DataSource
from mien.training.faces import Split, in_order, read_split, read_voted
from mien.training.release.agreement import evaluate_agreement, print_agreement
from mien.training.run_folder import load_best, read_facts
from mien.training.runtime import Machine
from mien.training.wording import ResultFiles, interval, metric_cells, percent, plain_interval

_BATCH: Final = 128
PRIORS: Final[tuple[Prior, ...]] = get_args(Prior)
_PAIR: Final = ("happiness", "neutral")


class Evaluation(SplitMetrics):
    """Metrics of one artifact on one split; a manifest stores those of `SplitMetrics`."""

    kl_to_votes: Interval | None


def open_graph(graph: Path | bytes, *, threads: int = 0, spinning: bool = True) -> onnxruntime.InferenceSession:
    """Open an ONNX graph on the CPU. `threads` 0 uses all cores; serving sets `spinning` to False."""
    source = graph if isinstance(graph, bytes) else str(graph)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def run_graph(session: onnxruntime.InferenceSession, crops: Array) -> Array:
    """Logits (N, K) float32 of crops (N, 112, 112, 3) uint8, RGB."""
    name = session.get_inputs()[0].name
    batches = [np.ascontiguousarray(crops[start : start + _BATCH]) for start in range(0, len(crops), _BATCH)]
    return np.concatenate([session.run(["logits"], {name: batch})[0] for batch in batches])


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A released artifact, by its fp32 graph, or the best weights of a run, which have no temperature or correction.

    Attributes:
        logits: (N, K) float32 of crops (N, 112, 112, 3) uint8, RGB.
        trained_with: hash of each data set's index, by kind/split.
    """

    name: str
    labels: tuple[str, ...]
    logits: Callable[[Array], Array]
    manifest: Manifest | None
    trained_with: Mapping[str, str]

    def title(self, prior: Prior) -> str:
        """Display name, with the prior that matters for an artifact only."""
        return f"{self.name}, {prior}" if self.manifest else self.name

    def probabilities(self, logits: Array, prior: Prior) -> Array:
        """Probabilities (N, K) of logits, as served."""
        return self.manifest.probabilities(logits, prior) if self.manifest else softmax(logits)


def open_model(folder: Path) -> Model:
    """Open a verified artifact or a run. Raises: ArtifactError, RunError, CheckpointError."""
    if (folder / MANIFEST_NAME).exists():
        manifest = load_artifact(folder)
        session = open_graph(folder / manifest.graph("fp32").file)
        logits = partial(run_graph, session)
        return Model(manifest.name, manifest.labels, logits, manifest, manifest.data_index_sha256)
    network, state = load_best(folder)
    head: Head = state["head"]

    def logits_of_head(crops: Array) -> Array:
        return predict(network, crops, heads=(head,))[head]

    return Model(f"run {folder.name}", tuple(state["labels"]), logits_of_head, None, read_facts(folder)["data"])


def score(
    faces: Split,
    probabilities: Array,
    *,
    prior: Prior = "natural",
    clean: bool = False,
    calibrated: Array | None = None,
) -> Evaluation:
    """Compute all metrics of N faces, or of the clean ones among them, with their intervals.

    Args:
        faces: with the classes of the model.
        probabilities: (N, K), as in serving.
        clean: whether to leave out faces that resemble a train face.
        calibrated: (N, K) cross-fitted probabilities for ECE, losses and coverage, if calibration was fitted here.
    """
    chosen = faces.clean if clean else np.ones(len(faces), dtype=bool)
    calibrated = (probabilities if calibrated is None else calibrated)[chosen]
    probabilities, labels = probabilities[chosen], faces.labels[chosen]
    votes = None if faces.votes is None else faces.votes[chosen]
    predicted = probabilities.argmax(axis=1)
    counts = metrics.confusion(predicted, labels, classes=len(faces.classes))
    return Evaluation(
        data=faces.kind,
        split=faces.name,
        clean=clean,
        prior=prior,
        faces=len(labels),
        accuracy=metrics.share(predicted == labels),
        mean_class_accuracy=metrics.mean_class_interval(counts),
        macro_f1=metrics.bootstrap(_macro_f1, predicted, labels),
        ece=metrics.ece(calibrated, labels),
        nll=metrics.mean(metrics.negative_log_likelihood(calibrated, labels)),
        brier=metrics.mean(metrics.brier(calibrated, labels)),
        coverage_at_95=metrics.coverage(calibrated, labels),
        kl_to_votes=None if votes is None else metrics.mean(metrics.kl_to_votes(calibrated, votes)),
        recall={faces.classes[index]: recall for index, recall in metrics.recall_intervals(counts).items()},
        happiness_against_neutral=_pair(probabilities, labels, faces.classes),
        confusion=tuple(map(tuple, counts.tolist())),
    )


def _macro_f1(predicted: Array, labels: Array) -> float:
    return metrics.macro_f1(metrics.confusion(predicted, labels))


def _pair(probabilities: Array, labels: Array, classes: tuple[str, ...]) -> Interval | None:
    """Accuracy of the choice between happiness and neutral, on the faces with one of these labels."""
    if not set(_PAIR) <= set(classes):
        return None
    first, second = map(classes.index, _PAIR)
    chosen = np.flatnonzero((labels == first) | (labels == second))
    if len(chosen) == 0 or len(np.unique(labels[chosen])) < 2:
        return None
    decided = np.where(probabilities[chosen, first] > probabilities[chosen, second], first, second)
    return metrics.share(decided == labels[chosen])


def score_logits(
    logits: Array, manifest: Manifest, faces: Split, calibrated: Mapping[Prior, Array] | None = None
) -> list[Evaluation]:
    """Metrics of the logits (N, K) of a graph by prior, of all faces and then of the clean ones; see `score`."""
    has_clean = faces.clean is not None and faces.clean.any()
    probabilities = {prior: manifest.probabilities(logits, prior) for prior in PRIORS}
    return [
        score(faces, probabilities[prior], prior=prior, clean=clean, calibrated=(calibrated or probabilities)[prior])
        for clean in ((False, True) if has_clean else (False,))
        for prior in PRIORS
    ]


def evaluate(folder: Path, faces: Split) -> tuple[Manifest, list[Evaluation], onnxruntime.InferenceSession]:
    """Verify an artifact, and evaluate its fp32 graph on one split; also returns the session of the graph.

    Raises: ArtifactError, DatasetError.
    """
    manifest = load_artifact(folder)
    faces = faces.for_classes(manifest.labels, of=f"artifact {manifest.name}")
    session = open_graph(folder / manifest.graph("fp32").file)
    return manifest, score_logits(run_graph(session, faces.crops), manifest, faces), session


def results_table(evaluations: list[Evaluation]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: metrics of all faces and of the clean ones, with each prior."""
    columns = [metric_cells(evaluation) for evaluation in evaluations]
    heads = [f"{'clean, ' if scored.clean else ''}{scored.prior}, {scored.faces} faces" for scored in evaluations]
    return ["metric", *heads], [[name, *(column.get(name, "") for column in columns)] for name in columns[0]]


def print_evaluations(evaluations: list[Evaluation], *, title: str) -> None:
    """Print metrics in percent with 95 % intervals: one table for all faces and one for clean ones."""
    for clean in sorted({evaluation.clean for evaluation in evaluations}):
        part = [evaluation for evaluation in evaluations if evaluation.clean == clean]
        heads = [f"{evaluation.prior}, {evaluation.faces:,} faces" for evaluation in part]
        table = Table("metric", *heads, title=f"{title}, clean faces" if clean else title)
        columns = [metric_cells(evaluation) for evaluation in part]
        for name in columns[0]:
            table.add_row(name, *(column[name] for column in columns))
        divergences = [evaluation.kl_to_votes for evaluation in part if evaluation.kl_to_votes is not None]
        if divergences:
            table.add_row("KL to votes (nats)", *map(plain_interval, divergences))
        Console().print(table)


def run(
    folder: Path,
    source: DataSource,
    *,
    corruptions: bool = False,
    corrupted: int | None = None,
    agreement: bool = False,
    figure: Path | None = None,
    files: ResultFiles,
) -> None:
    """Print the metrics of an artifact on a split.

    Args:
        corruptions: whether to measure corrupted faces, too: `corrupted` random ones, by default all.
        agreement: whether to compare the expected votes with those of the split, too.
        figure: file for a figure of the corruptions.
    """
    faces = read_split(source, find_clean=True)
    manifest, evaluations, session = evaluate(folder, faces)
    warning = faces.changed_since(manifest.data_index_sha256)
    title = f"{manifest.name} on {faces.kind} {faces.name}"
    print_evaluations(evaluations, title=title)
    rows: list[robustness.Row] = []
    if corruptions:
        faces = faces.for_classes(manifest.labels, of=manifest.name).sample(corrupted or len(faces))
        rows = robustness.measure(lambda crops: manifest.probabilities(run_graph(session, crops), "balanced"), faces)
        title += f", balanced, {len(faces):,} faces"
        robustness.print_rows(rows, title=title)
        if figure:
            robustness.write_figure(figure, rows, title=title)
    reliability: tuple[VotedFaces, ...] = ()
    if agreement:
        reliability = _print_agreement(manifest, session, source)
    scored = [evaluation.model_dump(mode="json") for evaluation in evaluations]
    results: dict[str, object] = {"artifact": manifest.name, "labels": manifest.labels, "evaluations": scored}
    results |= {"corruptions": rows} if rows else {}
    results |= {"agreement": [part.model_dump(mode="json") for part in reliability]} if reliability else {}
    results |= {"warning": warning} if warning else {}
    files.write(*results_table(evaluations), results)
    if warning:
        print(f"warning: {manifest.name}: {warning}", file=sys.stderr)


def _print_agreement(
    manifest: Manifest, session: onnxruntime.InferenceSession, source: DataSource
) -> tuple[VotedFaces, ...]:
    """Print how the expected votes meet those of a split, and return them by tenths. Raises: DatasetError."""
    voted = read_voted(source, manifest.labels)
    if voted is None or manifest.agreement is None:
        lacks = (
            f"{source.kind} has no votes for its labels"
            if voted is None
            else f"artifact {manifest.name} has no agreement"
        )
        raise DatasetError(f"--agreement: {lacks}")
    votes = evaluate_agreement(manifest, partial(run_graph, session), voted)
    print_agreement(votes, title=f"{manifest.name} on {voted.kind} {voted.split}, {len(voted.crops):,} faces")
    return votes.by_tenth()


_CPU: Final = Machine(torch.device("cpu"), torch.autocast("cpu", enabled=False))


def predict(network: nn.Module, crops: Array, *, heads: tuple[Head, ...], machine: Machine = _CPU) -> dict[Head, Array]:
    """Logits of the heads that a network has of `heads`, (N, 7) each; leaves the network in eval mode.

    Default: fp32 on the CPU.
    """
    network.eval()
    logits: dict[Head, list[Array]] = {}
    for start in range(0, len(crops), _BATCH):
        pixels = torch.from_numpy(np.array(crops[start : start + _BATCH])).to(machine.device)
        with torch.no_grad(), machine.autocast:
            output: Heads = network(pixels)
        for name in heads if output.distillation_logits is not None else ("class",):
            logits.setdefault(name, []).append(select_head(output, name).cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in logits.items()}


NLL: Final = "negative log likelihood"


@dataclass(frozen=True, slots=True)
class Gain:
    """A metric of both artifacts; `gain` is paired by face."""

    name: str
    before: float
    after: float
    gain: Interval


def compare(before: Array, after: Array, labels: Array, classes: tuple[str, ...] = LABELS) -> list[Gain]:
    """Compare negative log likelihood, accuracy, mean class accuracy, and recall of each class that occurs.

    Args:
        before, after: (N, K) probabilities. A negative gain of the negative log likelihood is an improvement.
    """
    present = np.unique(labels)

    def scores(predicted: Array, labels: Array) -> Array:
        counts = metrics.confusion(predicted, labels, classes=len(classes))
        overall = metrics.accuracy(counts), metrics.mean_class_accuracy(counts)
        return np.array([*overall, *metrics.recalls(counts)[present]])

    names = ["accuracy", "mean class accuracy", *(f"recall, {classes[index]}" for index in present)]
    predictions = [probabilities.argmax(axis=1) for probabilities in (before, after)]
    sides = [scores(predicted, labels).tolist() for predicted in predictions]
    gains = metrics.bootstrap_all(lambda b, a, actual: scores(a, actual) - scores(b, actual), *predictions, labels)
    loss_before, loss_after = (metrics.negative_log_likelihood(side, labels) for side in (before, after))
    loss = Gain(NLL, float(loss_before.mean()), float(loss_after.mean()), metrics.mean(loss_after - loss_before))
    return [loss, *(Gain(*row) for row in zip(names, *sides, gains, strict=True))]


def _cells(row: Gain) -> tuple[str, ...]:
    """Cells of a gain; shares in percent."""
    if row.name == NLL:
        return (row.name, f"{row.before:.3f}", f"{row.after:.3f}", plain_interval(row.gain, sign="+"))
    return (row.name, percent(row.before, 2), percent(row.after, 2), interval(row.gain, sign="+"))


def run_compare(before_dir: Path, after_dir: Path, source: DataSource, *, prior: Prior, files: ResultFiles) -> None:
    """Print the gains of one artifact or run over another on a split."""
    before, after = open_model(before_dir), open_model(after_dir)
    faces, models = read_split(source), (before, after)
    for model in models:
        faces.for_classes(model.labels, of=model.name)  # both know the classes of all faces
    classes = tuple(dict.fromkeys((*before.labels, *after.labels)))
    faces = faces.for_classes(classes, of="both")
    print(f"before: {before.title(prior)}\nafter: {after.title(prior)}")
    sides = [in_order(model.probabilities(model.logits(faces.crops), prior), model.labels, classes) for model in models]
    gains = compare(sides[0], sides[1], faces.labels, classes)
    heads = ("metric", "before", "after", "gain (95 % interval)")
    rows = [_cells(gain) for gain in gains]
    table = Table(*heads, title=faces.title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    mcnemar_p = metrics.mcnemar_p(*(probabilities.argmax(axis=1) == faces.labels for probabilities in sides))
    print(f"McNemar's test: p = {mcnemar_p:.2g}")
    names = {"before": before.title(prior), "after": after.title(prior)}
    files.write(heads, rows, {**names, "faces": len(faces), "mcnemar_p": mcnemar_p, "gains": gains})
    for model in models:
        if warning := faces.changed_since(model.trained_with):
            print(f"warning: {model.name}: {warning}", file=sys.stderr)
