"""Experiments: variants of a recipe, trained and compared in one table; and cross-validation.

    mien experiment training/recipes/experiments/vit_and_cnn.yaml [--seeds 3]
    mien cross-validate RECIPE [key=value ...] --folds 5 [--group-by person]

Each row and seed has a run folder in runs/experiments and is trained unless finished: rerun the command to resume. Then
the rows are evaluated on the validation split of the recipe: mean and standard deviation over seeds, 95 % bootstrap
intervals over faces, and gains over the first row, paired by face.

Cross-validation splits the first training set of a recipe. Each fold has a run folder in runs/cross_validation. The
weights of the last epoch are evaluated, so nothing is selected on the evaluated faces.
"""

import itertools
import logging
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import Field, model_validator

from mien.data.contract import Array
from mien.data.folds import Grouping
from mien.data.quality import softmax
from mien.models.strict import StrictModel
from mien.training import metrics
from mien.training.config import DataConfig, FoldConfig, Recipe, parse_as, read_as
from mien.training.data import Split, join, read_split
from mien.training.evaluate import open_model, scores
from mien.training.metrics import interval, percent
from mien.training.run import provenance, read_run_info
from mien.training.train import train

logger = logging.getLogger("mien.training")

Overrides = tuple[str, ...]


class Experiment(StrictModel):
    """Rows to compare; the first is the baseline. `{seed}` and `{runs}` in an override are the row's own."""

    base: Path = Field(description="recipe to vary, relative to the file of the experiment")
    common: Overrides = Field((), description="overrides for every row")
    matching: dict[str, Overrides] = Field(default_factory=dict, description="overrides by row or pattern, e.g. *_10")
    rows: dict[str, Overrides] = Field(min_length=2)

    @model_validator(mode="after")
    def _names_are_rows(self) -> Self:
        for pattern in self.matching:
            if not any(fnmatchcase(row, pattern) for row in self.rows):
                raise ValueError(f"matching: no row matches {pattern!r}")
        return self


def recipes_of(path: Path, *, runs: Path, seeds: int = 1) -> dict[str, list[Recipe]]:
    """Recipes by row, one per seed from 0, named after the experiment, row and seed. Raises: RecipeError."""
    experiment = read_as(Experiment, path)
    recipes: dict[str, list[Recipe]] = {}
    for row, seed in itertools.product(experiment.rows, range(seeds)):
        matching = [of for name, of in experiment.matching.items() if fnmatchcase(row, name)]
        overrides = [change for of in (experiment.common, *matching, experiment.rows[row]) for change in of]
        changes = [of.replace("{seed}", str(seed)).replace("{runs}", str(runs)) for of in overrides]
        changes += [f"seed={seed}", f"name={path.stem}_{row}_{seed}"]
        recipes.setdefault(row, []).append(read_as(Recipe, path.parent / experiment.base, changes))
    return recipes


def _evaluate(recipe: Recipe, runs: Path) -> tuple[Split, Array]:
    """Train a run, unless it is finished; its validation faces, and their probabilities, (N, K)."""
    data, color = recipe.data, recipe.model.color
    source = data.held_out  # It raises before the training.
    model = open_model(train(recipe, runs / recipe.name))
    faces = read_split(source, color=color, cache_dir=data.cache_dir, classes=model.labels, of=model.name)
    return faces, softmax(model.logits(faces.crops))


def run(recipes: dict[str, list[Recipe]], runs: Path) -> list[dict[str, Any]]:
    """Train all rows in `runs`, and evaluate them.

    Returns: of each row `row`, `parameters`, and `scores` by seed; means over the seeds, with their intervals:
        `accuracy`, `mean_class_accuracy`, and `gain` of accuracy over the first row, paired by face; None for other
        faces.
    """
    found, first = list[dict[str, Any]](), None
    for row, of_seeds in recipes.items():
        evaluated = [_evaluate(recipe, runs) for recipe in of_seeds]
        faces = evaluated[0][0]
        # (N,) share of the seeds with a correct prediction
        correct = np.mean([shares.argmax(axis=1) == faces.labels for _, shares in evaluated], axis=0)
        first = first or (faces.keys, correct)
        found.append({
            "row": row,
            "parameters": read_run_info(runs / of_seeds[0].name)["parameters"],
            "scores": [scores(faces, shares) for _, shares in evaluated],
            "accuracy": metrics.bootstrap(np.mean, correct)[0],
            "mean_class_accuracy": metrics.bootstrap(_mean_class_accuracy, correct, faces.labels)[0],
            "gain": metrics.bootstrap(np.mean, correct - first[1])[0] if faces.keys == first[0] else None,
        })  # fmt: skip
    return found


def _mean_class_accuracy(correct: Array, labels: Array) -> float:
    return float(np.mean([correct[labels == label].mean() for label in np.unique(labels)]))


def as_table(results: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of the table for docs/experiments.md, in percent, with the deviation over several seeds."""

    def cell(result: dict[str, Any], metric: str) -> str:
        value, bounds = interval(result[metric], 1).split(" ", 1)
        by_seed = [of_seed[metric].value for of_seed in result["scores"]]
        deviation = f" ± {percent(float(np.std(by_seed, ddof=1)))}" if len(by_seed) > 1 else ""
        return f"{value}{deviation} {bounds}"

    rows = [
        [
            result["row"], f"{result['parameters'] / 1e6:.2f} M", str(len(result["scores"])),
            cell(result, "accuracy"), cell(result, "mean_class_accuracy"),
            interval(result["gain"], 1, sign="+") if result["gain"] else "",
        ]
        for result in results
    ]  # fmt: skip
    return ["row", "parameters", "seeds", "accuracy", "mean class accuracy", "gain over the first row"], rows


def cross_validate(recipe: Recipe, *, folds: int, group_by: Grouping, runs: Path) -> dict[str, Any]:
    """Train the folds, and return the scores of all held-out faces together, and `accuracy_by_fold`.

    The first training source is split, the others are used completely.
    Raises: RecipeError, if the first source has no labels.
    """
    first, *others = recipe.data.train
    learned = provenance(recipe, {})["learned_from"]
    if any(name.split(" ")[0] == f"{first.kind}/{first.split}" for name in learned):
        logger.warning(
            "teachers or initial weights learned from %s/%s: unless that was another set, they know the held-out "
            "faces, and the results are too high",
            first.kind, first.split,
        )  # fmt: skip
    recipes = []
    for index in range(folds):
        rest, held = (
            first.model_copy(update={"fold": FoldConfig(of=folds, index=index, take=take, group_by=group_by)})
            for take in ("others", "fold")
        )
        data = parse_as(DataConfig, dict(recipe.data) | {"train": (rest, *others), "valid": held}, origin=recipe.name)
        changes = {"name": f"{recipe.name}_fold_{index}", "data": data, "select": "last"}
        recipes.append(recipe.model_copy(update=changes))
    held_out = [_evaluate(fold, runs) for fold in recipes]
    found = scores(join([faces for faces, _ in held_out]), np.concatenate([shares for _, shares in held_out]))
    by_fold = [float((shares.argmax(axis=1) == faces.labels).mean()) for faces, shares in held_out]
    return found | {"accuracy_by_fold": by_fold}
