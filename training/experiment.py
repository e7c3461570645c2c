"""Experiments: variants of a recipe, trained and compared in one table.

    python -m training.experiment training/recipes/experiments/distillation.yaml [--reduced] [--rows none,soft]

Each row and seed has a run folder in runs/experiments and is trained unless finished. Then all heads are evaluated on
the validation split of the recipe. Intervals are over faces; gains over the first row are paired by face.
"""

import argparse
import logging
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.logging import RichHandler

from data.contract import Array
from data.errors import MienError
from models.network import Head
from training.config import Recipe, RecipeError, read_recipe
from training.loop import metrics
from training.loop.batches import load_faces
from training.loop.metrics import Estimate
from training.loop.run_folder import load_best, parameters
from training.loop.supervised import predict
from training.report.history import read_history
from training.train import train
from training.wording import interval

logger = logging.getLogger("training")
RUNS: Final = Path("runs/experiments")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Budget(_Strict):
    """A smaller version of the experiment, for machines without a GPU."""

    seeds: tuple[int, ...] = Field(min_length=1)
    overrides: tuple[str, ...]
    rows: dict[str, tuple[str, ...]] = Field(default_factory=dict, description="overrides for single rows, by name")


class Experiment(_Strict):
    """Rows to compare; the first is the baseline."""

    base: Path = Field(description="recipe to vary, relative to the file of the experiment")
    seeds: tuple[int, ...] = Field(min_length=1)
    common: tuple[str, ...] = Field((), description="overrides for every row")
    reduced: Budget
    rows: dict[str, tuple[str, ...]] = Field(min_length=2)


@dataclass(frozen=True, slots=True)
class Result:
    """Metrics of one head of one row, over all seeds."""

    row: str
    head: Head
    chosen: bool  # whether validation selected this head, for the first seed
    parameters: int
    seeds: int
    accuracy: Estimate
    mean_class_accuracy: Estimate
    gain: Estimate  # of accuracy, over the selected head of the first row
    minutes: float  # training time for one seed


def read_experiment(path: Path) -> Experiment:
    """Read the YAML file of an experiment. Raises: RecipeError."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return Experiment.model_validate(values)
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise RecipeError(f"experiment {path}: {error}") from error


def recipes_of(path: Path, *, reduced: bool, rows: list[str] | None = None) -> dict[str, list[Recipe]]:
    """Recipes by row, one per seed, named after the experiment, row and seed. Raises: RecipeError.

    Args:
        path: file of the experiment.
        reduced: use the smaller budget.
        rows: select these rows; the first row, the baseline, is always included.
    """
    experiment = read_experiment(path)
    unknown = set(rows or []) - set(experiment.rows)
    if unknown:
        raise RecipeError(
            f"experiment {path}: no row {', '.join(sorted(unknown))}; it has {', '.join(experiment.rows)}"
        )
    first = next(iter(experiment.rows))
    chosen = {row: changes for row, changes in experiment.rows.items() if rows is None or row in (first, *rows)}
    seeds = experiment.reduced.seeds if reduced else experiment.seeds
    budget = experiment.reduced.overrides if reduced else ()
    by_row = experiment.reduced.rows if reduced else {}
    base, shared = (path.parent / experiment.base).resolve(), (*experiment.common, *budget)
    changes_of = {row: (*changes, *by_row.get(row, ())) for row, changes in chosen.items()}
    return {
        row: [
            read_recipe(base, [*shared, *changes, f"seed={seed}", f"name={path.stem}_{row}_{seed}"]) for seed in seeds
        ]
        for row, changes in changes_of.items()
    }


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
    exact = torch.autocast("cpu", enabled=False)
    heads = predict(network, valid.crops, device=torch.device("cpu"), autocast=exact)
    right = {head: logits.argmax(axis=1) == valid.labels for head, logits in heads.items()}
    return _Scored(right, valid.labels, state["head"], parameters(network), minutes)


def _result(row: str, head: Head, runs: list[_Scored], reference: list[Array]) -> Result:
    labels, faces = runs[0].labels, len(runs[0].labels)
    right = np.stack([run.right[head] for run in runs]).mean(axis=0)  # (N,) share of seeds with a correct prediction
    base = np.stack(reference).mean(axis=0) if len(reference[0]) == faces else None

    def mean_class(chosen: Array) -> float:
        present = np.unique(labels[chosen])
        return float(np.mean([right[chosen][labels[chosen] == label].mean() for label in present]))

    return Result(
        row=row,
        head=head,
        chosen=head == runs[0].chosen,
        parameters=runs[0].parameters,
        seeds=len(runs),
        accuracy=metrics.bootstrap(lambda i: float(right[i].mean()), faces),
        mean_class_accuracy=metrics.bootstrap(mean_class, faces),
        gain=Estimate(float("nan"), float("nan"), float("nan"))
        if base is None
        else metrics.bootstrap(lambda i: float((right[i] - base[i]).mean()), faces),
        minutes=float(np.mean([run.minutes for run in runs])),
    )


def as_markdown(results: list[Result]) -> str:
    """Table for docs/experiments.md, in percent; `*` marks the head selected by validation."""
    lines = [
        "| row | head | parameters | seeds | accuracy | mean class accuracy | gain over the first row | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        head = f"{result.head}{' *' if result.chosen else ''}"
        cells = [
            result.row, head, f"{result.parameters / 1e6:.2f} M", str(result.seeds), interval(result.accuracy, 1),
            interval(result.mean_class_accuracy, 1), interval(result.gain, 1, sign="+"), f"{result.minutes:.0f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.experiment", description="Train rows and compare them.")
    parser.add_argument("experiment", type=Path, help="file in training/recipes/experiments/")
    parser.add_argument("--reduced", action="store_true", help="use the smaller budget of the file")
    parser.add_argument("--rows", help="rows to run, separated by commas; the first row of the file is always included")
    parser.add_argument("--runs", type=Path, default=RUNS, help="folder of the run folders (default: %(default)s)")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler(show_path=False)])
    rows = options.rows.split(",") if options.rows else None
    try:
        recipes = recipes_of(options.experiment, reduced=options.reduced, rows=rows)
        print(as_markdown(compare(recipes, run_rows(recipes, options.runs))))
    except MienError as error:
        logger.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
