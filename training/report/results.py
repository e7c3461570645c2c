"""Results of one run on one set of faces, the input of all sections of the page."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mien.data.contract import Array, softmax
from mien.models.manifest import Interval
from mien.models.network import FaceNetwork, Head
from mien.training.config import Recipe
from mien.training.evaluate import Evaluation, score
from mien.training.faces import TEST, FaceSet
from mien.training.loop import metrics
from mien.training.loop.run_folder import load_best, parameters, read_facts, read_run
from mien.training.loop.supervised import predict
from mien.training.report.history import History, read_history


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run and the predictions of its best weights.

    Attributes:
        name: name of the recipe, made unique on the page.
        best_epoch: counted from 1.
        head: head selected by validation.
        raw: (N, 7) probabilities before temperature scaling.
        probabilities: (N, 7) after temperature scaling, cross-fitted.
        temperature: temperature for a release.
        threshold: confidence threshold for 95 % selective accuracy.
        ece_raw: calibration error of `raw`.
        evaluation: metrics of `probabilities`.
        fitted_on: description of the data that temperature and threshold were fitted on.
    """

    folder: Path
    name: str
    recipe: Recipe
    facts: dict[str, Any]
    history: History
    network: FaceNetwork
    parameters: int
    best_epoch: int
    head: Head
    raw: Array
    probabilities: Array
    temperature: float
    threshold: float
    ece_raw: Interval
    evaluation: Evaluation
    fitted_on: str

    @property
    def predicted(self) -> Array:
        """(N,) class indices."""
        return np.asarray(self.probabilities.argmax(axis=1))

    @property
    def confidence(self) -> Array:
        """(N,) calibrated probability of the predicted class."""
        return np.asarray(self.probabilities.max(axis=1))


def measure(folder: Path, name: str, faces: FaceSet, *, fitting: FaceSet | None) -> RunResult:
    """Evaluate the best weights of a run.

    Args:
        folder: the run.
        name: display name.
        faces: faces to evaluate on.
        fitting: faces to fit temperature and threshold on; None fits them on `faces`, with a cross-fitted temperature.
            Required for a test split.
    Raises: RunError, CheckpointError.
    """
    if faces.split == TEST and fitting is None:
        raise ValueError("a test split must not be used for fitting: expected `fitting`")
    recipe = read_run(folder)
    network, state = load_best(folder)
    head: Head = state["head"]
    logits = predict(network, faces.crops)[head]
    raw = softmax(logits)
    if fitting is None:
        probabilities = metrics.cross_fitted_probabilities(logits, faces.labels)
        temperature = metrics.fit_temperature(logits, faces.labels)
        threshold = metrics.abstain_threshold(probabilities, faces.labels)
        fitted_on = "these faces; the temperature is cross-fitted on five folds"
    else:
        known = predict(network, fitting.crops)[head]
        temperature = metrics.fit_temperature(known, fitting.labels)
        threshold = metrics.abstain_threshold(softmax(known, temperature), fitting.labels)
        probabilities = softmax(logits, temperature)
        fitted_on = fitting.title
    return RunResult(
        folder=folder,
        name=name,
        recipe=recipe,
        facts=read_facts(folder),
        history=read_history(folder, batch_size=recipe.batch_size),
        network=network,
        parameters=parameters(network),
        best_epoch=state["epoch"] + 1,
        head=head,
        raw=raw,
        probabilities=probabilities,
        temperature=temperature,
        threshold=threshold,
        ece_raw=metrics.bootstrap(lambda i: metrics.ece(raw[i], faces.labels[i]), len(faces)),
        evaluation=score(probabilities, faces.labels, votes=faces.votes, data=faces.kind, split=faces.split),
        fitted_on=fitted_on,
    )


def names_of(folders: list[Path], recipes: list[Recipe]) -> list[str]:
    """Names of the recipes, with the folder if a name occurs twice."""
    names = [recipe.name for recipe in recipes]
    return [
        f"{name} ({folder})" if names.count(name) > 1 else name for name, folder in zip(names, folders, strict=True)
    ]
