"""Experiments: variants of a recipe, trained and compared in one table and one figure.

    mien experiment training/recipes/experiments/vit_and_cnn.yaml [--rows vit_100,cnn_100] [--seeds 3]
        [--plot FILE.png] [--curves FILE.png]

Each row and seed has a run folder in runs/experiments and is trained unless finished: rerun the command to resume. Then
all heads are evaluated on the validation split of the recipe: mean and standard deviation over seeds, 95 % bootstrap
intervals over faces, gains over the first row paired by face, and McNemar's test against it for each seed.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mien.data.contract import Array
from mien.models.network import Head
from mien.training import metrics
from mien.training.config import Recipe, read_as
from mien.training.faces import read_split
from mien.training.loop.prediction import predict
from mien.training.loop.run_folder import load_best, parameters
from mien.training.report.comparison import Figures, Result, as_table, write_curves, write_figure
from mien.training.report.history import read_history
from mien.training.train import train
from mien.training.variants import Experiment
from mien.training.wording import ResultFiles, markdown_table


@dataclass(frozen=True, slots=True)
class Scored:
    """One run on validation."""

    right: dict[Head, Array]  # (N,) bool by head
    labels: Array  # (N,)
    chosen: Head
    parameters: int
    minutes: float


def score_run(recipe: Recipe, runs: Path) -> Scored:
    """Evaluate all heads of a run. Raises: RunError, DatasetError."""
    folder = runs / recipe.name
    network, state = load_best(folder)
    valid = read_split(recipe.data.held_out, color=recipe.model.color, cache_dir=recipe.data.cache_dir)
    minutes = read_history(folder, batch_size=recipe.batch_size).minutes
    logits = predict(network, valid.crops, heads=recipe.distillation.trained_heads)
    right = {head: of_head.argmax(axis=1) == valid.labels for head, of_head in logits.items()}
    return Scored(right, valid.labels, state["head"], parameters(network), minutes)


def compare(recipes: dict[str, list[Recipe]], runs: Path) -> list[Result]:
    """Evaluate all heads of all rows on the validation split. Raises: RunError, DatasetError."""
    scored = {row: [score_run(recipe, runs) for recipe in of_seeds] for row, of_seeds in recipes.items()}
    baseline = next(iter(scored.values()))
    return [_result(row, head, runs, baseline) for row, runs in scored.items() for head in runs[0].right]


def _result(row: str, head: Head, runs: list[Scored], baseline: list[Scored]) -> Result:
    labels = runs[0].labels
    by_seed = np.stack([run.right[head] for run in runs])  # (seeds, N)
    right = by_seed.mean(axis=0)  # (N,) share of seeds with a correct prediction
    gain = None
    mcnemar_p: tuple[float, ...] = ()
    if len(baseline[0].labels) == len(labels):
        base = np.stack([run.right[run.chosen] for run in baseline])
        gain = metrics.bootstrap(np.mean, right - base.mean(axis=0))
        mcnemar_p = tuple(metrics.mcnemar_p(*pair) for pair in zip(base, by_seed, strict=True))
    return Result(
        row=row,
        head=head,
        chosen=head == runs[0].chosen,
        parameters=runs[0].parameters,
        accuracy=Figures(metrics.bootstrap(np.mean, right), tuple(map(float, by_seed.mean(axis=1)))),
        mean_class_accuracy=Figures(
            metrics.bootstrap(_mean_class, right, labels), tuple(_mean_class(of_seed, labels) for of_seed in by_seed)
        ),
        gain=gain,
        mcnemar_p=() if runs is baseline and head == runs[0].chosen else mcnemar_p,
        minutes=float(np.mean([run.minutes for run in runs])),
    )


def _mean_class(right: Array, labels: Array) -> float:
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def run(
    experiment: Path,
    recipes: dict[str, list[Recipe]],
    runs: Path,
    *,
    figure: Path | None = None,
    curves: Path | None = None,
    files: ResultFiles,
) -> None:
    """Train the rows of `recipes_of` in `runs`, print their table, and write figures, table and results."""
    for of_seeds in recipes.values():
        for recipe in of_seeds:
            train(recipe, runs / recipe.name)
    results = compare(recipes, runs)
    headings, cells = as_table(results)
    print(markdown_table(headings, cells))
    files.write(headings, cells, results)
    plot = read_as(Experiment, experiment).plot
    if figure:
        write_figure(figure, results, plot)
    if curves:
        histories = {
            row: [read_history(runs / recipe.name, batch_size=recipe.batch_size) for recipe in of_seeds]
            for row, of_seeds in recipes.items()
        }
        write_curves(curves, histories, plot)
