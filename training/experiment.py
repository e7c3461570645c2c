"""Experiments: variants of a recipe, trained and compared in one table and one figure.

    mien experiment training/recipes/experiments/distillation.yaml [--reduced] [--rows none,soft]
        [--plot FILE.png]

Each row and seed has a run folder in runs/experiments and is trained unless finished: rerun the command to resume. Then
all heads are evaluated on the validation split of the recipe. Intervals are over faces; gains over the first row are
paired by face.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mien.data.contract import Array
from mien.models.manifest import Interval
from mien.models.network import Head
from mien.training.command import exit_code
from mien.training.config import Recipe, read_as
from mien.training.loop import metrics
from mien.training.loop.batches import load_faces
from mien.training.loop.run_folder import load_best, parameters
from mien.training.loop.supervised import predict
from mien.training.report.comparison import Figures, Result, as_markdown, write_figure
from mien.training.report.history import read_history
from mien.training.train import train
from mien.training.variants import RUNS, Experiment, recipes_of


def run_rows(recipes: dict[str, list[Recipe]], runs: Path) -> dict[str, list[Path]]:
    """Train all unfinished runs; returns the run folders. Raises: see `train`."""
    folders: dict[str, list[Path]] = {}
    for row, of_seeds in recipes.items():
        for recipe in of_seeds:
            folders.setdefault(row, []).append(train(recipe, runs / recipe.name))
    return folders


def compare(recipes: dict[str, list[Recipe]], folders: dict[str, list[Path]]) -> list[Result]:
    """Evaluate all heads of all rows on the validation split. Raises: RunError, DatasetError."""
    scored = {row: [_score(r, f) for r, f in zip(recipes[row], folders[row], strict=True)] for row in recipes}
    first = next(iter(scored.values()))
    reference = [run.right[run.chosen] for run in first]
    return [_result(row, head, runs, reference) for row, runs in scored.items() for head in runs[0].right]


@dataclass(frozen=True, slots=True)
class _Scored:
    right: dict[Head, Array]  # (N,) bool by head
    labels: Array  # (N,)
    chosen: Head
    parameters: int
    minutes: float


def _score(recipe: Recipe, folder: Path) -> _Scored:
    network, state = load_best(folder)
    valid = load_faces(recipe.data.valid, color=recipe.model.color, cache_dir=recipe.data.cache_dir)
    minutes = read_history(folder, batch_size=recipe.batch_size).minutes
    right = {head: logits.argmax(axis=1) == valid.labels for head, logits in predict(network, valid.crops).items()}
    return _Scored(right, valid.labels, state["head"], parameters(network), minutes)


def _result(row: str, head: Head, runs: list[_Scored], reference: list[Array]) -> Result:
    labels, faces = runs[0].labels, len(runs[0].labels)
    of_seeds = np.stack([run.right[head] for run in runs])  # (seeds, N)
    right = of_seeds.mean(axis=0)  # (N,) share of seeds with a correct prediction
    base = np.stack(reference).mean(axis=0) if len(reference[0]) == faces else None
    return Result(
        row=row,
        head=head,
        chosen=head == runs[0].chosen,
        parameters=runs[0].parameters,
        seeds=len(runs),
        accuracy=Figures(
            metrics.bootstrap(lambda i: float(right[i].mean()), faces), tuple(map(float, of_seeds.mean(axis=1)))
        ),
        mean_class_accuracy=Figures(
            metrics.bootstrap(lambda i: _mean_class(right[i], labels[i]), faces),
            tuple(_mean_class(one, labels) for one in of_seeds),
        ),
        gain=Interval(float("nan"), float("nan"), float("nan"))
        if base is None
        else metrics.bootstrap(lambda i: float((right[i] - base[i]).mean()), faces),
        minutes=float(np.mean([run.minutes for run in runs])),
    )


def _mean_class(right: Array, labels: Array) -> float:
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="mien experiment", description="Train rows and compare them.")
    parser.add_argument("experiment", type=Path, help="file in training/recipes/experiments/")
    parser.add_argument("--reduced", action="store_true", help="use the smaller budget of the file")
    parser.add_argument(
        "--rows", help="rows to run, separated by commas; the first row and the rows that teach are always included"
    )
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the run folders (default: %(default)s)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="also draw the results, as .png or .svg")
    options = parser.parse_args(arguments)
    if options.plot and options.plot.suffix not in (".png", ".svg"):
        parser.error(f"--plot {options.plot}: expected a name that ends with .png or .svg")
    return exit_code(lambda: _run(options))


def _run(options: argparse.Namespace) -> None:
    rows = options.rows.split(",") if options.rows else None
    recipes = recipes_of(options.experiment, reduced=options.reduced, rows=rows, runs=options.runs)
    results = compare(recipes, run_rows(recipes, options.runs))
    print(as_markdown(results))
    if options.plot:
        write_figure(options.plot, results, read_as(Experiment, options.experiment, []).plot)
