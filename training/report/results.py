"""Results of one run on one set of faces, the input of all parts of the page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mien.data.contract import Array, softmax
from mien.models.network import Head
from mien.training import metrics
from mien.training.config import Recipe
from mien.training.evaluate import Evaluation, score
from mien.training.faces import Split
from mien.training.loop.prediction import predict
from mien.training.loop.run_folder import load_best, parameters, read_facts, read_run
from mien.training.release.operating_point import fit_operating_point
from mien.training.report.history import History, read_history


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run and the predictions of its best weights.

    Attributes:
        name: name of the recipe, made unique on the page.
        best_epoch: counted from 1.
        raw: (N, 7) probabilities before temperature scaling.
        probabilities: (N, 7) after temperature scaling, cross-fitted.
        threshold: confidence threshold for 95 % selective accuracy.
        evaluation: metrics of `probabilities`.
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
    evaluation: Evaluation
    fitted_on: str
    warnings: tuple[str, ...]

    @property
    def predicted(self) -> Array:
        """(N,) class indices."""
        return np.asarray(self.probabilities.argmax(axis=1))

    @property
    def confidence(self) -> Array:
        """(N,) calibrated probability of the predicted class."""
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
        evaluation=score(faces, probabilities),
        fitted_on=fitted_on,
        warnings=tuple(
            warning for used in (faces, fitting) if used is not None and (warning := used.changed_since(facts["data"]))
        ),
    )


def most_confident_mistakes(predicted: Array, confidence: Array, labels: Array, *, shown: int = 24) -> Array:
    """Indices of wrongly labeled faces, most confident first; at most `shown`."""
    wrong = np.flatnonzero(predicted != labels)
    return wrong[np.argsort(-confidence[wrong], kind="stable")][:shown]
