"""How good a model is on some faces: `open_model`, `scores`, and `compare`, paired by face.

    mien evaluate models/artifacts/NAME --data ferplus=path/to/ferplus --split valid --json OUT
    mien compare models/artifacts/BEFORE runs/AFTER --data folders=sets/folders --split valid [--prior natural]

An artifact is evaluated as it is served: by its ONNX graph, with temperature, with and without the correction for rare
classes, and softened by the quality of the crops. A run has none of these. Intervals are of 95 % (training/metrics.py).
--corruptions also measures corrupted faces (training/robustness.py), --agreement the expected votes.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import onnxruntime
import torch
from torch import nn

from mien.data.contract import LABELS, TEMPLATE_PX, Array
from mien.data.errors import DatasetError
from mien.data.quality import measure, soften, softmax
from mien.models.backbones import Heads
from mien.models.manifest import MANIFEST_NAME, Manifest, Precision, Prior, load_artifact, read_report
from mien.models.network import Head, select_head
from mien.training import metrics
from mien.training.config import DataSource
from mien.training.data import Split, in_order, read_split, read_voted, with_classes
from mien.training.metrics import Interval
from mien.training.run import load_best, read_run_info
from mien.training.wording import ResultFiles, interval, percent, plain_interval, print_table, scores_table

_BATCH: Final = 128
_CPU: Final = torch.device("cpu")
NLL: Final = "negative log likelihood"
PRIORS: Final[tuple[Prior, ...]] = get_args(Prior)


def open_graph(graph: Path, *, threads: int = 0, spinning: bool = True) -> onnxruntime.InferenceSession:
    """Open an ONNX graph on the CPU. `threads` 0 uses all cores; serving sets `spinning` to False."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors: it warns about inputs with defaults
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    return onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])


def run_graph(session: onnxruntime.InferenceSession, crops: Array) -> Array:
    """Logits (N, K) float32 of crops (N, 112, 112, 3) uint8, RGB."""
    name = session.get_inputs()[0].name
    batches = [np.ascontiguousarray(crops[start : start + _BATCH]) for start in range(0, len(crops), _BATCH)]
    return np.concatenate([session.run(["logits"], {name: batch})[0] for batch in batches])


def predict(
    network: nn.Module, crops: Array, *, heads: tuple[Head, ...], device: torch.device = _CPU
) -> dict[Head, Array]:
    """Logits of the heads that a network has of `heads`, (N, K) each, in fp32; leaves the network in eval mode."""
    network.eval()
    logits: dict[Head, list[Array]] = {}
    for start in range(0, len(crops), _BATCH):
        pixels = torch.from_numpy(np.array(crops[start : start + _BATCH])).to(device)
        with torch.no_grad():
            output: Heads = network(pixels)
        for name in heads if output.distillation_logits is not None else ("class",):
            logits.setdefault(name, []).append(select_head(output, name).cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in logits.items()}


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

    def title(self, prior: Prior) -> str:
        """Display name, with the prior that matters for an artifact only."""
        return f"{self.name}, {prior}" if self.manifest else self.name

    def probabilities(self, logits: Array, crops: Array, prior: Prior) -> Array:
        """Probabilities (N, K) of crops by their logits, as served."""
        if self.manifest is None:
            return softmax(logits)
        return softened(self.manifest.probabilities(logits, prior), crops)


def open_model(folder: Path, precision: Precision = "fp32") -> Model:
    """Open a verified artifact or a run, which has no precisions. Raises: ArtifactError, RunError."""
    if (folder / MANIFEST_NAME).exists():
        return open_released(folder, load_artifact(folder), precision)
    network, state = load_best(folder)
    head: Head = state["head"]

    def logits_of_head(crops: Array) -> Array:
        return predict(network, crops, heads=(head,))[head]

    return Model(f"run {folder.name}", tuple(state["labels"]), logits_of_head, None, read_run_info(folder)["data"])


def open_released(folder: Path, manifest: Manifest, precision: Precision = "fp32") -> Model:
    """Open a graph of an artifact that is verified or not complete yet."""
    logits = partial(run_graph, open_graph(folder / manifest.graph(precision).file))
    name = manifest.name if precision == "fp32" else f"{manifest.name}, {precision}"
    return Model(name, manifest.labels, logits, manifest, read_report(folder).get("data", {}))


def softened(probabilities: Array, crops: Array) -> Array:
    """Soften probabilities (N, K) as in serving, as if the landmarks of the faces were those of the template."""
    quality = [measure(np.asarray(crop), np.array(TEMPLATE_PX)) for crop in crops]
    return np.stack([soften(of_face, seen) for of_face, seen in zip(probabilities, quality, strict=True)])


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
    counts = metrics.confusion(predicted, labels, classes=len(faces.classes))
    found: dict[str, Any] = {
        "data": faces.kind,
        "split": faces.name,
        "prior": prior,
        "faces": len(labels),
        "accuracy": metrics.share(predicted == labels),
        "mean_class_accuracy": metrics.mean_class_interval(counts),
        "macro_f1": metrics.bootstrap(lambda *faces: metrics.macro_f1(metrics.confusion(*faces)), predicted, labels),
        "nll": metrics.mean(metrics.negative_log_likelihood(calibrated, labels)),
        "brier": metrics.mean(metrics.brier(calibrated, labels)),
        "ece": metrics.ece(calibrated, labels),
    }
    if threshold is not None:
        kept = calibrated.max(axis=1) >= threshold
        found |= {"kept": metrics.share(kept), "kept_accuracy": metrics.share((predicted == labels)[kept])}
    if faces.votes is not None:
        found["kl_to_votes"] = metrics.mean(metrics.kl_to_votes(calibrated, faces.votes))
    recalls = metrics.recall_intervals(counts).items()
    return found | {
        "recall": {faces.classes[index]: recall for index, recall in recalls},
        "confusion": counts.tolist(),
        "reliability": metrics.reliability(calibrated, labels),
    }


def scores_of_model(
    model: Model, faces: Split, logits: Array, calibrated: Mapping[Prior, Array] | None = None
) -> list[dict[str, Any]]:
    """Scores of a model's logits (N, K) by prior; see `scores`."""
    found = []
    for prior in model.priors:
        probabilities = model.probabilities(logits, faces.crops, prior)
        threshold = model.manifest.confidence_threshold if model.manifest else None
        fitted = None if calibrated is None else calibrated[prior]
        found.append(scores(faces, probabilities, prior=prior, calibrated=fitted, threshold=threshold))
    return found


@dataclass(frozen=True, slots=True)
class Gain:
    """A metric of both models; `gain` is paired by face, and None for fewer than `metrics.MIN_FACES` faces."""

    name: str
    before: float
    after: float
    gain: Interval | None

    def cells(self) -> tuple[str, ...]:
        if self.gain is None:
            few = f"{percent(self.after - self.before, 2, sign='+')} (too few faces for an interval)"
            return (self.name, percent(self.before, 2), percent(self.after, 2), few)
        if self.name == NLL:
            return (self.name, f"{self.before:.3f}", f"{self.after:.3f}", plain_interval(self.gain, sign="+"))
        return (self.name, percent(self.before, 2), percent(self.after, 2), interval(self.gain, sign="+"))


def compare(before: Array, after: Array, labels: Array, classes: tuple[str, ...] = LABELS) -> list[Gain]:
    """Compare negative log likelihood, accuracy, mean class accuracy, and recall of each class that occurs.

    Args:
        before, after: (N, K) probabilities. A negative gain of the negative log likelihood is an improvement.
    """
    present = np.unique(labels)

    def shares(predicted: Array, labels: Array) -> Array:
        counts = metrics.confusion(predicted, labels, classes=len(classes))
        overall = metrics.accuracy(counts), metrics.mean_class_accuracy(counts)
        return np.array([*overall, *metrics.recalls(counts)[present]])

    names = ["accuracy", "mean class accuracy", *(f"recall, {classes[index]}" for index in present)]
    predictions = [probabilities.argmax(axis=1) for probabilities in (before, after)]
    sides = [shares(predicted, labels).tolist() for predicted in predictions]
    gains = metrics.bootstrap_all(lambda b, a, actual: shares(a, actual) - shares(b, actual), *predictions, labels)
    loss_before, loss_after = (metrics.negative_log_likelihood(side, labels) for side in (before, after))
    loss = Gain(NLL, float(loss_before.mean()), float(loss_after.mean()), metrics.mean(loss_after - loss_before))
    sizes = [len(labels), len(labels), *np.bincount(labels, minlength=len(classes))[present].tolist()]
    known = [gain if size >= metrics.MIN_FACES else None for gain, size in zip(gains, sizes, strict=True)]
    return [loss, *(Gain(*row) for row in zip(names, *sides, known, strict=True))]


def headline(models: Sequence[Model], faces: Split, logits: Sequence[Array]) -> dict[str, Any]:
    """Print and return what papers report: plain argmax on all faces, over several runs with mean and deviation."""
    predicted, classes = [of_model.argmax(axis=1) for of_model in logits], len(faces.classes)
    found = {
        "accuracy": [metrics.share(of_model == faces.labels) for of_model in predicted],
        "mean_class_accuracy": [
            metrics.mean_class_interval(metrics.confusion(of_model, faces.labels, classes=classes))
            for of_model in predicted
        ],
    }
    names = ", ".join(model.name for model in models)
    print(f"{names}\n{faces.title}, argmax of the logits, 95 % interval over faces:")
    for name, figures in found.items():
        values = [figure.value for figure in figures]
        each = "; ".join(f"{interval(figure)} %" for figure in figures)
        if len(values) > 1:
            deviation = percent(float(np.std(values, ddof=1)), 2)
            each += f"; mean {percent(float(np.mean(values)), 2)} %, standard deviation {deviation}"
        print(f"  {name.replace('_', ' ')} {each}")
    return found


def run(  # noqa: PLR0913 (options of the command)
    folders: Sequence[Path],
    source: DataSource,
    *,
    precision: Precision = "fp32",
    corrupted: int | None = None,
    agreement: bool = False,
    figure: Path | None = None,
    predictions: Path | None = None,
    files: ResultFiles,
) -> None:
    """Print the metrics of an artifact or a run on a split; of several runs, such as seeds, the first lines only.

    Args:
        corrupted: random faces to measure corruptions on, too.
        agreement: whether to compare the expected votes with those of the split, too.
        figure: file for a figure of confusion and reliability.
        predictions: CSV file with the label and the probabilities of each face.
    """
    models = [open_model(folder, precision) for folder in folders]
    model = models[0]
    faces = read_split(source, classes=model.labels, of=model.name)
    if others := [other.name for other in models if other.labels != model.labels]:
        raise DatasetError(f"{', '.join(others)}: other classes than {model.name}")
    all_logits = [each.logits(faces.crops) for each in models]
    first, logits = headline(models, faces, all_logits), all_logits[0]
    if len(models) > 1:
        cells = zip(*([interval(figure) for figure in figures] for figures in first.values()), strict=True)
        by_model = [(each.name, *of_model) for each, of_model in zip(models, cells, strict=True)]
        files.write(("model", *first), by_model, {"models": [each.name for each in models], "headline": first})
        return
    evaluations = scores_of_model(model, faces, logits)
    table = scores_table({f"{found['prior']}, {found['faces']:,} faces": found for found in evaluations})
    title = f"{model.name} on {faces.kind} {faces.name}"
    print_table(*table, title=title)
    results: dict[str, object] = {"model": model.name, "labels": model.labels, "headline": first, "scores": evaluations}
    if predictions:
        write_predictions(predictions, faces, model.probabilities(logits, faces.crops, model.priors[-1]))
    if corrupted:
        from mien.training import robustness

        results["corruptions"] = robustness.measure(model, faces.sample(corrupted), title=title)
    if figure:
        from mien.training import figures

        figures.write_scores(figure, evaluations[-1], model.labels, title=title)
    if agreement:
        results["agreement"] = print_agreement(model, source)
    warning = faces.changed_since(model.trained_with)
    results |= {"warning": warning} if warning else {}
    files.write(*table, results)
    if warning:
        print(f"warning: {model.name}: {warning}", file=sys.stderr)


def print_agreement(model: Model, source: DataSource) -> dict[str, Any]:
    """Print how the expected votes meet those of a split, and return the result. Raises: DatasetError."""
    from mien.training.calibration import agreement_scores

    faces = read_voted(source, model.labels)
    if faces is None:
        raise DatasetError(f"--agreement: {source.kind} has no votes for its labels")
    if model.manifest is None or model.manifest.agreement is None:
        raise DatasetError(f"--agreement: {model.name} has no agreement")
    balanced = model.manifest.probabilities(model.logits(faces.crops), "balanced")
    found = agreement_scores(model.manifest.votes(balanced, "balanced"), faces, balanced.argmax(axis=1))
    rows = [
        (f"{part['faces']:,}", percent(part["expected"]), interval(part["votes"], 1)) for part in found["reliability"]
    ]
    caption = f"mean error {interval(found['error'], 1)} points, of the mean {interval(found['error_of_mean'], 1)}; "
    caption += f"correlation {found['correlation'].value:.2f}"
    title = f"{model.name} on {faces.kind} {faces.name}, {len(faces):,} faces: agreement, in % (95 % interval)"
    print_table(("faces", "agreement", "votes"), rows, title=title, caption=caption)
    return found


def write_predictions(path: Path, faces: Split, probabilities: Array) -> None:
    """Write a row per face: its key, its label, the predicted one, and the probability of each class."""
    heads = ["face", "label", "predicted", *(f"p_{name}" for name in faces.classes)]
    rows = [
        (key, faces.classes[label], faces.classes[row.argmax()], *(f"{share:.6f}" for share in row))
        for key, label, row in zip(faces.keys, faces.labels, probabilities, strict=True)
    ]
    ResultFiles(table=path).write(heads, rows, None)


def run_compare(before_dir: Path, after_dir: Path, source: DataSource, *, prior: Prior, files: ResultFiles) -> None:
    """Print the gains of one artifact or run over another on a split."""
    before, after = open_model(before_dir), open_model(after_dir)
    faces, models = read_split(source), (before, after)
    for model in models:
        with_classes(faces, model.labels, of=model.name)  # both know the classes of all faces
    classes = tuple(dict.fromkeys((*before.labels, *after.labels)))
    faces = with_classes(faces, classes, of="both")
    print(f"before: {before.title(prior)}\nafter: {after.title(prior)}")
    sides = [
        in_order(model.probabilities(model.logits(faces.crops), faces.crops, prior), model.labels, classes)
        for model in models
    ]
    gains = compare(sides[0], sides[1], faces.labels, classes)
    heads, rows = ("metric", "before", "after", "gain (95 % interval)"), [gain.cells() for gain in gains]
    print_table(heads, rows, title=faces.title)
    mcnemar_p = metrics.mcnemar_p(*(probabilities.argmax(axis=1) == faces.labels for probabilities in sides))
    print(f"McNemar's test: p = {mcnemar_p:.2g}")
    names = {"before": before.title(prior), "after": after.title(prior)}
    files.write(heads, rows, {**names, "faces": len(faces), "mcnemar_p": mcnemar_p, "gains": gains})
    for model in models:
        if warning := faces.changed_since(model.trained_with):
            print(f"warning: {model.name}: {warning}", file=sys.stderr)
