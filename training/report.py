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
from mien.training import figures, metrics
from mien.training.config import DataSource
from mien.training.data import TEST, Split, read_split
from mien.training.evaluate import evaluate, predict
from mien.training.release.operating_point import fit_operating_point
from mien.training.run import METRICS, RunError, load_best, parameters, read_facts, read_run
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
    path = folder / METRICS
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


def most_confident_mistakes(predicted: Array, confidence: Array, labels: Array, *, shown: int = 24) -> Array:
    """Indices of wrongly labeled faces, most confident first; at most `shown`."""
    wrong = np.flatnonzero(predicted != labels)
    return wrong[np.argsort(-confidence[wrong], kind="stable")][:shown]


_HEADINGS: Final = (
    "run", "parameters", "epochs", "head", "accuracy", "mean class accuracy", "macro-F1", "ECE", "ECE, uncalibrated",
    "minutes", "images/s", "seed",
)  # fmt: skip


def describe(folder: Path, name: str, faces: Split, *, fitting: Split | None, show_faces: bool) -> dict[str, Any]:
    """Evaluate the best weights of a run for its section of the page, and its row of the table.

    Args:
        fitting: faces to fit temperature and threshold on, for a test split; None fits them on `faces`, with a
            cross-fitted temperature.
        show_faces: whether to include images of faces; the terms of a data set may prohibit sharing them.
    Raises: RunError.
    """
    recipe = read_run(folder)
    network, state = load_best(folder)
    facts = read_facts(folder)
    classes, head = tuple(state["labels"]), state["head"]
    faces = faces.for_classes(classes, of=f"run {folder.name}")
    logits = predict(network, faces.crops, heads=(head,))[head]
    if fitting is None:
        point = fit_operating_point(logits, faces.labels)
        temperature, probabilities = point.temperature, point.cross_fitted["natural"]
        threshold = metrics.confidence_threshold(probabilities, faces.labels)
        fitted_on = "these faces; the temperature is cross-fitted on five folds"
    else:
        fitting = fitting.for_classes(classes, of=f"run {folder.name}")
        fitting_logits = predict(network, fitting.crops, heads=(head,))[head]
        temperature = metrics.fit_temperature(fitting_logits, fitting.labels)
        threshold = metrics.confidence_threshold(softmax(fitting_logits, temperature), fitting.labels)
        probabilities, fitted_on = softmax(logits, temperature), fitting.title
    scores, unscaled = evaluate(faces, probabilities), evaluate(faces, softmax(logits))
    history = read_history(folder, batch_size=recipe.batch_size)
    done, best_epoch, valid = int(history.epochs[-1]), state["epoch"] + 1, recipe.data.held_out
    options = "".join(f", {key}={value}" for key, value in valid.options.items())
    epochs = f"{done}" if done == recipe.epochs else f"{done} of {recipe.epochs}"
    row = (
        name, f"{parameters(network) / 1e6:.2f} M", epochs, head,
        *(interval(share, 1) for share in (scores.accuracy, scores.mean_class_accuracy, scores.macro_f1)),
        percent(scores.ece), percent(unscaled.ece), f"{history.minutes:.1f}", f"{history.faces_per_s:.0f}",
        str(recipe.seed),
    )  # fmt: skip
    predicted, confidence, mistakes = probabilities.argmax(axis=1), probabilities.max(axis=1), []
    for index in most_confident_mistakes(predicted, confidence, faces.labels) if show_faces else ():
        votes = [] if faces.votes is None else list(zip(classes, faces.votes[index], strict=True))
        shares = sorted((vote for vote in votes if vote[1] > 0), key=lambda vote: -vote[1])
        listed = ", ".join(f"{percent(share, 0)} % {label}" for label, share in shares)
        actual, label = classes[faces.labels[index]], classes[predicted[index]]
        face = figures.thumbnail(faces.crops[index], f"A face labeled {actual}")
        mistakes.append((face, faces.keys[index], actual, listed, f"{label} {percent(confidence[index], 0)}"))
    with figures.in_style():
        drawn = {
            "history": figures.history(history, best_epoch=best_epoch),
            "calibration": figures.calibration(unscaled, scores, probabilities, faces.labels, threshold=threshold),
        }
    return drawn | {
        "row": row,
        "name": name,
        "recipe": recipe,
        "head": head,
        "best_epoch": best_epoch,
        "validated_on": f"{valid.kind} {valid.split}{options}",
        "warnings": [
            warning for used in (faces, fitting) if used is not None and (warning := used.changed_since(facts["data"]))
        ],
        "labels": classes,
        "scores": scores,
        "worst": most_confused(np.array(scores.confusion), classes),
        "temperature": temperature,
        "fitted_on": fitted_on,
        "threshold": threshold,
        "mistakes": mistakes,
        "recipe_text": yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False),
        "facts": yaml.safe_dump(facts, sort_keys=False),
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
    recipes = [read_run(folder) for folder in folders]
    valid, names = recipes[0].data.held_out, [recipe.name for recipe in recipes]
    kind, root = data or (valid.kind, valid.resolved_root())
    same = kind == valid.kind
    known = {**(valid.options if same else {}), **options}
    source = DataSource(kind=kind, split=split or (valid.split if same else "valid"), root=root, options=known)
    faces, runs = read_split(source), []
    for folder, recipe in zip(folders, recipes, strict=True):
        fitting, valid = None, recipe.data.held_out
        if valid.fold is not None:
            raise RunError(f"{folder}: a fold of a cross-validation, trained on other faces of this split; no report")
        if source.split == TEST:  # nothing is fitted on it
            fitting = read_split(valid.model_copy(update={"root": root}) if valid.kind == kind else valid)
        name = f"{recipe.name} ({folder})" if names.count(recipe.name) > 1 else recipe.name
        runs.append(describe(folder, name, faces, fitting=fitting, show_faces=show_faces))
    rows = [described["row"] for described in runs]
    if markdown:
        print(f"{faces.title}; shares in % with 95 % intervals over faces:\n")
        print(markdown_table(_HEADINGS, rows))
    if out or not markdown:
        out = out or Path("report.html")
        # nothing is marked as safe, so names from recipes and data sets are escaped
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FileSystemLoader(Path(__file__).parent)
        )
        environment.filters |= {"percent": percent, "interval": interval}
        page = environment.get_template("report.html")
        write_atomic(out, page.render(faces=faces, show_faces=show_faces, headings=_HEADINGS, rows=rows, runs=runs))
        print(f"wrote {out}", file=sys.stderr)
    for described in runs:
        for warning in described["warnings"]:
            print(f"warning: {described['name']}: {warning}", file=sys.stderr)
