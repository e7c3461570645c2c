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
from mien.training.config import DataConfig, FoldConfig, Recipe, parse_as
from mien.training.data import Split, join, read_split
from mien.training.evaluate import open_model, scores
from mien.training.run import provenance
from mien.training.train import train
from mien.training.wording import ResultFiles, percent, print_table, scores_table

logger = logging.getLogger("mien.training")


def run(recipe: Recipe, *, folds: int, group_by: Grouping, runs: Path, files: ResultFiles) -> None:
    """Train the folds, and print the metrics of all held-out faces together and the accuracy of each fold.

    The first training source is split, the others are used completely.
    Raises: RecipeError, if the first source has no labels.
    """
    (first, *others), start = recipe.data.train, recipe.model.init_from
    folders = (*recipe.distillation.teachers, *([start] if start else []))
    learned = provenance(recipe.model, {}, folders=folders)["learned_from"]
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
    held_out: list[tuple[Split, Array]] = []
    for fold in recipes:
        model = open_model(train(fold, runs / fold.name))
        faces = read_split(fold.data.held_out, color=recipe.model.color, cache_dir=recipe.data.cache_dir)
        faces = faces.for_classes(model.labels, of=model.name)
        held_out.append((faces, model.probabilities(model.logits(faces.crops), faces.crops, "natural")))
    found = scores(join([faces for faces, _ in held_out]), np.concatenate([shares for _, shares in held_out]))
    table = scores_table({f"{found['faces']:,} faces": found})
    print_table(*table, title=f"{recipe.name}, {folds} folds")
    by_fold = [float((shares.argmax(axis=1) == faces.labels).mean()) for faces, shares in held_out]
    print("accuracy by fold, %: " + ", ".join(percent(share, 2) for share in by_fold))
    rows = [*table[1], *([f"accuracy, fold {fold}", percent(share, 2)] for fold, share in enumerate(by_fold))]
    files.write(table[0], rows, {**found, "accuracy_by_fold": by_fold})
