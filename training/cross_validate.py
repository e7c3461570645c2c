"""Cross-validation of a recipe on its first training set.

    mien cross-validate RECIPE [key=value ...] --folds 5 [--group-by person]

Each fold has a run folder in runs/cross_validation and is trained unless finished. The weights of the last epoch are
evaluated, so nothing is selected on the evaluated faces. Intervals are over faces.
"""

import logging
from pathlib import Path

import numpy as np

from mien.data.contract import Array
from mien.data.folds import Grouping
from mien.training import metrics
from mien.training.config import FoldConfig, Recipe
from mien.training.evaluate import predict
from mien.training.faces import read_split
from mien.training.run_folder import load_best, provenance
from mien.training.train import train
from mien.training.wording import ResultFiles, interval, percent

logger = logging.getLogger("mien.training")


def fold_recipes(recipe: Recipe, *, folds: int, group_by: Grouping) -> list[Recipe]:
    """Build one recipe per fold: the first training source is split, the others are used completely."""
    first, *others = recipe.data.train
    recipes = []
    for index in range(folds):
        rest, held = (
            first.model_copy(update={"fold": FoldConfig(of=folds, index=index, take=take, group_by=group_by)})
            for take in ("others", "fold")
        )
        data = recipe.data.model_copy(update={"train": (rest, *others), "valid": held})
        recipes.append(
            recipe.model_copy(update={"name": f"{recipe.name}_fold_{index}", "data": data, "select": "last"})
        )
    return recipes


def warn_of_known_faces(recipe: Recipe) -> None:
    """Log a warning if teachers or initial weights learned from the set whose folds are held out."""
    first, start = recipe.data.train[0], recipe.model.init_from
    folders = (*recipe.distillation.teachers, *([start] if start else []))
    learned = provenance(recipe.model, {}, folders=folders)["learned_from"]
    if any(name.split(" ")[0] == f"{first.kind}/{first.split}" for name in learned):
        logger.warning(
            "teachers or initial weights learned from %s/%s: unless that was another set, they know the held-out "
            "faces, and the results are too high",
            first.kind, first.split,
        )  # fmt: skip


def _score(recipe: Recipe, folder: Path) -> tuple[Array, Array]:
    """Predicted and true classes, (N,) each, of the held-out fold."""
    network, state = load_best(folder)
    held = read_split(recipe.data.held_out, color=recipe.model.color, cache_dir=recipe.data.cache_dir)
    return predict(network, held.crops, heads=(state["head"],))[state["head"]].argmax(axis=1), held.labels


def run(recipe: Recipe, *, folds: int, group_by: Grouping, runs: Path, files: ResultFiles) -> None:
    """Train the folds, and print the metrics of all held-out faces together and the accuracy of each fold."""
    warn_of_known_faces(recipe)
    recipes = fold_recipes(recipe, folds=folds, group_by=group_by)
    scored = [_score(fold, train(fold, runs / fold.name)) for fold in recipes]
    predicted, labels = (np.concatenate(parts) for parts in zip(*scored, strict=True))
    shares = dict(zip(("accuracy", "mean class accuracy"), metrics.accuracies(predicted, labels), strict=True))
    for name, share in shares.items():
        print(f"{name}, %: {interval(share)}, {len(labels)} faces")
    by_fold = [float((classes == actual).mean()) for classes, actual in scored]
    print("accuracy by fold, %: " + ", ".join(percent(share, 2) for share in by_fold))
    rows = [(name, interval(share)) for name, share in shares.items()]
    rows += [(f"accuracy, fold {number}", percent(share, 2)) for number, share in enumerate(by_fold)]
    confusion = metrics.confusion(predicted, labels).tolist()
    results = {**shares, "faces": len(labels), "accuracy by fold": by_fold, "confusion": confusion}
    files.write(("metric", "%"), rows, results)
