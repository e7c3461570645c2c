"""Report about runs: one HTML page with history, confusion, calibration and mistakes.

mien report RUN... [--data KIND=ROOT] [--out report.html] [--markdown]
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
import yaml

from mien.data.atomic import write_atomic
from mien.data.contract import Array, softmax
from mien.models.network import Head
from mien.training import figures, metrics
from mien.training.config import DataSource, Recipe
from mien.training.evaluate import Scores, evaluate, predict
from mien.training.faces import TEST, Split, read_split
from mien.training.release.operating_point import fit_operating_point
from mien.training.run_folder import METRICS_NAME, RunError, load_best, parameters, read_facts, read_run
from mien.training.wording import interval, markdown_table, most_confused, percent


@dataclass(frozen=True, slots=True)
class History:
    """A run over its epochs.

    Attributes:
        position: (T,) position of each logged step, in epochs.
        loss: (T,) by part: loss (the total), supervised and, with a teacher, distillation.
        epochs: (E,) position of each validation, in epochs.
        accuracy, mean_class_accuracy: (E,) on validation, of the best head of each epoch; NaN without validation.
        minutes: duration of training steps, without validation.
        faces_per_s: mean over the run.
    """

    position: Array
    loss: dict[str, Array]
    epochs: Array
    accuracy: Array
    mean_class_accuracy: Array
    minutes: float
    faces_per_s: float


def read_history(folder: Path, *, batch_size: int) -> History:
    """Read the metrics file of a run. Raises: RunError, if it is missing, damaged or has no completed epoch."""
    path = folder / METRICS_NAME
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror}); a report needs the complete run folder") from error
    except json.JSONDecodeError as error:
        raise RunError(f"{path}: damaged ({error}); rerun the training command to repair it") from error
    steps = [line for line in lines if "loss" in line]
    epochs = [line for line in lines if "epoch" in line]
    if not epochs or not steps:
        raise RunError(f"{path}: {'no step was logged' if epochs else 'no epoch is completed yet'}")
    # the last speed logged in an epoch is its mean
    seconds, speed, previous = 0.0, 0.0, 0
    for line in lines:
        speed = line.get("faces_per_s", speed)
        if "epoch" in line and speed:
            seconds += (line["step"] - previous) * batch_size / speed
            previous = line["step"]
    loss = {
        part: np.array([line[part] for line in steps], np.float64)
        for part in ("loss", "supervised", "distillation")
        if all(part in line for line in steps)
    }
    if "distillation" in loss and not loss["distillation"].any():
        loss = {"loss": loss["loss"]}  # no teacher: the supervised loss is the total
    return History(
        position=np.array([line["step"] for line in steps]) * (epochs[-1]["epoch"] + 1) / epochs[-1]["step"],
        loss=loss,
        epochs=np.array([line["epoch"] + 1 for line in epochs]),
        accuracy=np.array([line.get("valid_accuracy", np.nan) for line in epochs]),
        mean_class_accuracy=np.array([line.get("valid_mean_class_accuracy", np.nan) for line in epochs]),
        minutes=seconds / 60,
        faces_per_s=epochs[-1]["step"] * batch_size / seconds if seconds else float("nan"),
    )


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run and the predictions of its best weights.

    Attributes:
        name: name of the recipe, made unique on the page.
        best_epoch: counted from 1.
        raw: (N, 7) probabilities before temperature scaling.
        probabilities: (N, 7) after temperature scaling, cross-fitted.
        threshold: confidence threshold for 95 % selective accuracy.
        scores: metrics of `probabilities`.
        fitted_on: description of the data that temperature and threshold were fitted on.
    """

    name: str
    recipe: Recipe
    classes: tuple[str, ...]
    facts: dict[str, Any]
    history: History
    parameters: int
    best_epoch: int
    head: Head
    raw: Array
    probabilities: Array
    temperature: float
    threshold: float
    ece_raw: float
    scores: Scores
    fitted_on: str
    warnings: tuple[str, ...]

    @property
    def confidence(self) -> Array:
        return np.asarray(self.probabilities.max(axis=1))


def measure(folder: Path, name: str, faces: Split, *, fitting: Split | None) -> RunResult:
    """Evaluate the best weights of a run.

    Args:
        fitting: faces to fit temperature and threshold on, for a test split; None fits them on `faces`, with a
            cross-fitted temperature.
    Raises: RunError, CheckpointError.
    """
    recipe = read_run(Recipe, folder)
    network, state = load_best(folder)
    classes, name_of_run = tuple(state["labels"]), f"run {folder.name}"
    faces = faces.for_classes(classes, of=name_of_run)
    facts = read_facts(folder)
    head: Head = state["head"]
    logits = predict(network, faces.crops, heads=(head,))[head]
    raw = softmax(logits)
    if fitting is None:
        point = fit_operating_point(logits, faces.labels)
        temperature, probabilities = point.temperature, point.cross_fitted["natural"]
        threshold = metrics.confidence_threshold(probabilities, faces.labels)
        fitted_on = "these faces; the temperature is cross-fitted on five folds"
    else:
        fitting = fitting.for_classes(classes, of=name_of_run)
        fitting_logits = predict(network, fitting.crops, heads=(head,))[head]
        temperature = metrics.fit_temperature(fitting_logits, fitting.labels)
        threshold = metrics.confidence_threshold(softmax(fitting_logits, temperature), fitting.labels)
        probabilities = softmax(logits, temperature)
        fitted_on = fitting.title
    return RunResult(
        name=name,
        recipe=recipe,
        classes=classes,
        facts=facts,
        history=read_history(folder, batch_size=recipe.batch_size),
        parameters=parameters(network),
        best_epoch=state["epoch"] + 1,
        head=head,
        raw=raw,
        probabilities=probabilities,
        temperature=temperature,
        threshold=threshold,
        ece_raw=metrics.ece(raw, faces.labels),
        scores=evaluate(faces, probabilities),
        fitted_on=fitted_on,
        warnings=tuple(
            warning for used in (faces, fitting) if used is not None and (warning := used.changed_since(facts["data"]))
        ),
    )


def most_confident_mistakes(predicted: Array, confidence: Array, labels: Array, *, shown: int = 24) -> Array:
    """Indices of wrongly labeled faces, most confident first; at most `shown`."""
    wrong = np.flatnonzero(predicted != labels)
    return wrong[np.argsort(-confidence[wrong], kind="stable")][:shown]


_HEADINGS: Final = (
    "run", "parameters", "epochs", "head", "accuracy", "mean class accuracy", "macro-F1", "ECE", "ECE, uncalibrated",
    "minutes", "images/s", "seed",
)  # fmt: skip


def gather(folders: list[Path], source: DataSource) -> tuple[list[RunResult], Split]:
    """Evaluate every run on one split; for a test split, `measure` is fitted on the recipe's validation split.

    Raises: RunError, CheckpointError, RecipeError, DatasetError.
    """
    recipes = {folder: read_run(Recipe, folder) for folder in folders}
    names = [recipe.name for recipe in recipes.values()]
    faces, results = read_split(source), []
    for folder, recipe in recipes.items():
        fitting, valid = None, recipe.data.held_out
        if valid.fold is not None:
            raise RunError(f"{folder}: a fold of a cross-validation, trained on other faces of this split; no report")
        if source.split == TEST:
            fitting = read_split(valid.model_copy(update={"root": source.root}) if valid.kind == source.kind else valid)
        name = f"{recipe.name} ({folder})" if names.count(recipe.name) > 1 else recipe.name
        results.append(measure(folder, name, faces, fitting=fitting))
    return results, faces


def table_row(result: RunResult) -> tuple[str, ...]:
    """Cells of a run, in the order of the headings; shares in percent with their intervals."""
    scores, history, epochs = result.scores, result.history, result.recipe.epochs
    shares = (scores.accuracy, scores.mean_class_accuracy, scores.macro_f1)
    done = int(history.epochs[-1])
    return (
        result.name,
        f"{result.parameters / 1e6:.2f} M",
        f"{done}" if done == epochs else f"{done} of {epochs}",
        result.head,
        *(interval(share, 1) for share in shares),
        percent(scores.ece),
        percent(result.ece_raw),
        f"{history.minutes:.1f}",
        f"{history.faces_per_s:.0f}",
        str(result.recipe.seed),
    )


def page(results: list[RunResult], faces: Split, *, show_faces: bool = True) -> str:
    """One self-contained HTML document.

    Args:
        show_faces: whether to include images of faces; the terms of a data set may prohibit sharing them.
    """
    # nothing is marked as safe, so names from recipes and data sets are escaped
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FileSystemLoader(Path(__file__).parent)
    )
    environment.filters |= {"percent": percent, "interval": interval}
    with figures.in_style():
        runs = [_run_of_page(result, faces, show_faces=show_faces) for result in results]
    rows = [table_row(result) for result in results]
    return environment.get_template("report.html").render(
        faces=faces, show_faces=show_faces, headings=_HEADINGS, rows=rows, runs=runs
    )


def _run_of_page(result: RunResult, faces: Split, *, show_faces: bool) -> dict[str, Any]:
    valid, counts = result.recipe.data.held_out, np.array(result.scores.confusion)
    faces = faces.for_classes(result.classes, of=result.name)
    options = "".join(f", {name}={value}" for name, value in valid.options.items())
    mistakes = []
    labeled = result.probabilities.argmax(axis=1)
    for index in most_confident_mistakes(labeled, result.confidence, faces.labels) if show_faces else ():
        actual, predicted = result.classes[faces.labels[index]], result.classes[labeled[index]]
        votes = [] if faces.votes is None else list(zip(result.classes, faces.votes[index], strict=True))
        shares = sorted((vote for vote in votes if vote[1] > 0), key=lambda vote: -vote[1])
        face = figures.thumbnail(faces.crops[index], f"A face labeled {actual}")
        listed = ", ".join(f"{percent(share, 0)} % {label}" for label, share in shares)
        prediction = f"{predicted} {percent(result.confidence[index], 0)}"
        mistakes.append((face, faces.keys[index], actual, listed, prediction))
    return {
        "result": result,
        "labels": result.classes,
        "validated_on": f"{valid.kind} {valid.split}{options}",
        "worst": most_confused(counts, result.classes),
        "history": figures.history(result),
        "calibration": figures.calibration(result, faces.labels),
        "mistakes": mistakes,
        "recipe": yaml.safe_dump(result.recipe.model_dump(mode="json"), sort_keys=False),
        "facts": yaml.safe_dump(result.facts, sort_keys=False),
    }


def run(
    folders: list[Path],
    *,
    data: tuple[str, Path] | None,
    split: str | None,
    options: Mapping[str, Any],
    out: Path | None,
    markdown: bool,
    show_faces: bool,
) -> None:
    """Write the page, or print the table of runs; by default, of the validation split of the first run's recipe."""
    valid = read_run(Recipe, folders[0]).data.held_out
    kind, root = data or (valid.kind, valid.resolved_root())
    same = kind == valid.kind
    known = {**(valid.options if same else {}), **options}
    source = DataSource(kind=kind, split=split or (valid.split if same else "valid"), root=root, options=known)
    results, faces = gather(folders, source)
    if markdown:
        print(f"{faces.title}; shares in % with 95 % intervals over faces:\n")
        print(markdown_table(_HEADINGS, map(table_row, results)))
    if out or not markdown:
        out = out or Path("report.html")
        write_atomic(out, page(results, faces, show_faces=show_faces))
        print(f"wrote {out}", file=sys.stderr)
    for result in results:
        for warning in result.warnings:
            print(f"warning: {result.name}: {warning}", file=sys.stderr)
