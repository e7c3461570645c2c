"""Experiments: variants of a recipe, trained and compared in one table and one figure; and cross-validation.

    mien experiment training/recipes/experiments/vit_and_cnn.yaml [--rows vit_100,cnn_100] [--seeds 3]
        [--plot FILE.png]
    mien cross-validate RECIPE [key=value ...] --folds 5 [--group-by person]

Each row and seed has a run folder in runs/experiments and is trained unless finished: rerun the command to resume. Then
all heads are evaluated on the validation split of the recipe, or another, such as --split test: mean and standard
deviation over seeds, 95 % bootstrap intervals over faces, gains over the first row paired by face, and McNemar's test
against it for each seed, with Holm's correction for all comparisons.

Cross-validation splits the first training set of a recipe. Each fold has a run folder in runs/cross_validation. The
weights of the last epoch are evaluated, so nothing is selected on the evaluated faces.
"""

import itertools
import json
import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from pydantic import Field, model_validator

from mien.data.contract import Array
from mien.data.folds import Grouping
from mien.data.quality import softmax
from mien.models.network import Head
from mien.models.strict import StrictModel
from mien.training import metrics
from mien.training.config import DataConfig, DataSource, FoldConfig, Recipe, RecipeError, parse_as, read_as
from mien.training.data import Split, join, read_split
from mien.training.evaluate import open_model, predict, scores
from mien.training.figures import COLOR, percent_axis, saved_figure
from mien.training.metrics import Interval
from mien.training.run import METRICS, load_best, parameters
from mien.training.train import train
from mien.training.weights import provenance
from mien.training.wording import ResultFiles, interval, markdown_table, percent, print_table, scores_table

logger = logging.getLogger("mien.training")

RUNS: Final = Path("runs/experiments")
Overrides = tuple[str, ...]


class Experiment(StrictModel):
    """Rows to compare; the first is the baseline. `{seed}` and `{runs}` in an override are the row's own.

    `grid` instead of `rows` makes a row of each combination of the values of some keys of the recipe.
    """

    base: Path = Field(description="recipe to vary, relative to the file of the experiment")
    seeds: tuple[int, ...] = Field((0,), min_length=1)
    common: Overrides = Field((), description="overrides for every row")
    matching: dict[str, Overrides] = Field(default_factory=dict, description="overrides by row or pattern, e.g. *_10")
    grid: dict[str, tuple[Any, ...]] = Field(default_factory=dict, description="values by key of the recipe")
    rows: dict[str, Overrides] = Field(min_length=2)

    @model_validator(mode="before")
    @classmethod
    def _rows_of_the_grid(cls, values: Any) -> Any:
        grid = values.get("grid") if isinstance(values, dict) else None
        if not isinstance(grid, dict) or not all(isinstance(choices, list) for choices in grid.values()):
            return values
        if "rows" in values:
            raise ValueError("grid and rows: choose one")
        rows: dict[str, list[str]] = {}
        for combination in itertools.product(*grid.values()):
            named = dict(zip(grid, combination, strict=True))
            name = "_".join(f"{key.split('.')[-1]}_{value}" for key, value in named.items())
            changes = [f"{key}={json.dumps(value)}" for key, value in named.items()]
            row = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
            if row in rows:
                raise ValueError(f"grid: two combinations would be row {row}; give them their own names in rows")
            rows[row] = changes
        return values | {"rows": rows}

    @model_validator(mode="after")
    def _names_are_rows(self) -> Self:
        for pattern in self.matching:
            if not any(fnmatchcase(row, pattern) for row in self.rows):
                raise ValueError(f"matching: no row matches {pattern!r}")
        return self

    def overrides(self, row: str) -> Overrides:  # the strongest last
        matching = (change for name, of in self.matching.items() if fnmatchcase(row, name) for change in of)
        return (*self.common, *matching, *self.rows[row])


def recipes_of(
    path: Path, *, rows: list[str] | None = None, runs: Path = RUNS, seeds: Iterable[int] | None = None
) -> dict[str, list[Recipe]]:
    """Recipes by row, one per seed, named after the experiment, row and seed. Raises: RecipeError.

    Args:
        rows: select these rows; the first row, the baseline, and the rows that teach them are always included.
        seeds: instead of those of the file.
    """
    experiment = read_as(Experiment, path, [])
    if unknown := ", ".join(sorted(set(rows or []) - set(experiment.rows))):
        raise RecipeError(f"experiment {path}: no row {unknown}; it has {', '.join(experiment.rows)}")
    recipes: dict[str, list[Recipe]] = {}
    base = (path.parent / experiment.base).resolve()
    for row, seed in itertools.product(experiment.rows, list(seeds or experiment.seeds)):
        changes = [of.replace("{seed}", str(seed)).replace("{runs}", str(runs)) for of in experiment.overrides(row)]
        recipe = read_as(Recipe, base, [*changes, f"seed={seed}", f"name={path.stem}_{row}_{seed}"])
        recipes.setdefault(row, []).append(recipe)
    needed = _with_teachers({next(iter(recipes)), *(rows or experiment.rows)}, recipes, runs)
    return {row: of_seeds for row, of_seeds in recipes.items() if row in needed}


def _with_teachers(chosen: set[str], recipes: dict[str, list[Recipe]], runs: Path) -> set[str]:
    """Add the rows whose runs teach one of the chosen rows."""
    row_of = {runs / recipe.name: row for row, of_seeds in recipes.items() for recipe in of_seeds}
    wanted = [teacher for row in chosen for recipe in recipes[row] for teacher in recipe.distillation.teachers]
    more = {row_of[teacher] for teacher in wanted if teacher in row_of} - chosen
    return _with_teachers(chosen | more, recipes, runs) if more else chosen


@dataclass(frozen=True, slots=True)
class Result:
    """Scores of one head of one row, over all seeds."""

    row: str
    head: Head
    chosen: bool  # whether it is the head that the recipe releases
    parameters: int
    minutes: float  # training time for one seed
    scores: tuple[dict[str, Any], ...]  # by seed
    accuracy: Interval  # mean over the seeds
    mean_class_accuracy: Interval
    gain: Interval | None  # of accuracy, over the released head of the first row, paired by face; None for other faces
    mcnemar_p: tuple[float, ...]  # by seed, against the released head of the first row with this seed

    def by_seed(self, metric: str) -> list[float]:
        return [of_seed[metric].value for of_seed in self.scores]

    def cell(self, metric: str) -> str:
        """Mean in percent with its interval, and the standard deviation over several seeds."""
        value, bounds = interval(getattr(self, metric), 1).split(" ", 1)
        if len(self.scores) > 1:
            value += f" ± {percent(float(np.std(self.by_seed(metric), ddof=1)))}"
        return f"{value} {bounds}"


def as_table(results: list[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows of the table for docs/experiments.md, in percent; `*` marks the released head."""
    headings: tuple[str, ...] = (
        "row", "head", "parameters", "seeds", "accuracy", "mean class accuracy", "gain over the first row",
        "McNemar p by seed", "minutes",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [
        (
            result.row, f"{result.head}{' *' if result.chosen else ''}", f"{result.parameters / 1e6:.2f} M",
            str(len(result.scores)), result.cell("accuracy"), result.cell("mean_class_accuracy"),
            interval(result.gain, 1, sign="+") if result.gain else "",
            ", ".join(f"{p:.2g}" for p in result.mcnemar_p), f"{result.minutes:.0f}",
        )
        for result in results
    ]  # fmt: skip
    return headings, rows


def write_figure(path: Path, results: list[Result]) -> None:
    """Draw the released head of each row as PNG: mean with its interval, and the value of each seed."""
    rows = [result for result in results if result.chosen]
    split = rows[0].scores[0]["split"].replace("valid", "validation")
    with saved_figure(path, 6.8, 0.9 + 0.28 * len(rows)) as drawn:
        metrics_drawn = ("accuracy", "mean_class_accuracy")
        for axes, metric in zip(drawn.subplots(1, 2, sharey=True), metrics_drawn, strict=True):
            for number, result in enumerate(rows):
                mean, by_seed = getattr(result, metric), result.by_seed(metric)
                axes.hlines(number, mean.low, mean.high, color=COLOR, linewidth=1.5)
                axes.plot(mean.value, number, "o", color=COLOR, markersize=5)
                axes.plot(by_seed, [number] * len(by_seed), "o", color=COLOR, markersize=3, alpha=0.5)
            axes.set_yticks(range(len(rows)), [result.row for result in rows])
            axes.set(xlabel=f"{split} {metric.replace('_', ' ')}, %", ylim=(len(rows) - 0.5, -0.5))
            percent_axis(axes.xaxis)


@dataclass(frozen=True, slots=True)
class _Evaluated:
    """One run on the faces of a split."""

    scores: dict[Head, dict[str, Any]]
    correct: dict[Head, Array]  # (N,) bool
    faces: Split
    chosen: Head
    parameters: int
    minutes: float


def training_minutes(folder: Path, *, batch_size: int) -> float:
    """Duration of the steps of a run, without validation; the last speed logged in an epoch is its mean."""
    seconds, speed, previous = 0.0, 0.0, 0
    for line in map(json.loads, (folder / METRICS).read_text(encoding="utf-8").splitlines()):
        speed = line.get("faces_per_s", speed)
        if "epoch" in line and speed:
            seconds += (line["step"] - previous) * batch_size / speed
            previous = line["step"]
    return seconds / 60


def _source(recipe: Recipe, split: str | None) -> DataSource:
    """The validation split, or another split of its set; without validation, of the first training set.

    Raises: RecipeError, if there is neither.
    """
    if not split:
        return recipe.data.held_out
    source = recipe.data.valid or recipe.data.train[0]
    return source.model_copy(update={"split": split, "target": "label", "fraction": 1.0, "fold": None})


def _evaluate(recipe: Recipe, runs: Path, split: str | None) -> _Evaluated:
    """Evaluate all heads of a run. Raises: RunError, DatasetError."""
    folder, source = runs / recipe.name, _source(recipe, split)
    network, state = load_best(folder)
    classes = tuple(state["labels"])
    faces = read_split(
        source, color=recipe.model.color, cache_dir=recipe.data.cache_dir, classes=classes, of=recipe.name
    )
    logits = predict(network, faces.crops, heads=recipe.distillation.trained_heads)
    return _Evaluated(
        scores={head: scores(faces, softmax(of_head)) for head, of_head in logits.items()},
        correct={head: of_head.argmax(axis=1) == faces.labels for head, of_head in logits.items()},
        faces=faces,
        chosen=state["head"],
        parameters=parameters(network),
        minutes=training_minutes(folder, batch_size=recipe.batch_size),
    )


def compare(recipes: dict[str, list[Recipe]], runs: Path, *, split: str | None = None) -> list[Result]:
    """Evaluate all heads of all rows on a split, by default the validation split. Raises: RunError, DatasetError."""
    rows = {row: [_evaluate(recipe, runs, split) for recipe in of_seeds] for row, of_seeds in recipes.items()}
    baseline = next(iter(rows.values()))
    found = [_result(row, head, of_seeds, baseline) for row, of_seeds in rows.items() for head in of_seeds[0].scores]
    adjusted = iter(metrics.holm([p for result in found for p in result.mcnemar_p]))
    return [replace(of, mcnemar_p=tuple(itertools.islice(adjusted, len(of.mcnemar_p)))) for of in found]


def _result(row: str, head: Head, of_seeds: list[_Evaluated], baseline: list[_Evaluated]) -> Result:
    first, base_faces = of_seeds[0], baseline[0].faces
    by_seed = np.stack([run.correct[head] for run in of_seeds])  # (seeds, N)
    correct = by_seed.mean(axis=0)  # (N,) share of seeds with a correct prediction
    gain, mcnemar_p = None, tuple[float, ...]()
    if (base_faces.index_sha256, base_faces.keys) == (first.faces.index_sha256, first.faces.keys):
        base = np.stack([run.correct[run.chosen] for run in baseline])
        gain = metrics.bootstrap(np.mean, correct - base.mean(axis=0))
        mcnemar_p = tuple(metrics.mcnemar_p(*pair) for pair in zip(base, by_seed, strict=True))
    return Result(
        row=row,
        head=head,
        chosen=head == first.chosen,
        parameters=first.parameters,
        minutes=float(np.mean([run.minutes for run in of_seeds])),
        scores=tuple(run.scores[head] for run in of_seeds),
        accuracy=metrics.bootstrap(np.mean, correct),
        mean_class_accuracy=metrics.bootstrap(
            lambda correct, labels: np.mean([correct[labels == label].mean() for label in np.unique(labels)]),
            correct,
            first.faces.labels,
        ),
        gain=gain,
        mcnemar_p=() if of_seeds is baseline and head == first.chosen else mcnemar_p,
    )


def run(
    recipes: dict[str, list[Recipe]],
    runs: Path,
    *,
    split: str | None = None,
    figure: Path | None = None,
    files: ResultFiles,
) -> None:
    """Train the rows of `recipes_of` in `runs`, print their table, and write figure, table and results.

    Args:
        split: to evaluate on, by default the validation split of each recipe.
    """
    for recipe in itertools.chain.from_iterable(recipes.values()):
        _source(recipe, split)  # It raises its error before the training.
    for recipe in itertools.chain.from_iterable(recipes.values()):
        train(recipe, runs / recipe.name)
    results = compare(recipes, runs, split=split)
    headings, cells = as_table(results)
    print(markdown_table(headings, cells))
    files.write(headings, cells, results)
    if figure:
        write_figure(figure, results)


def cross_validate(recipe: Recipe, *, folds: int, group_by: Grouping, runs: Path, files: ResultFiles) -> None:
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
        faces = read_split(
            fold.data.held_out,
            color=recipe.model.color,
            cache_dir=recipe.data.cache_dir,
            classes=model.labels,
            of=model.name,
        )
        held_out.append((faces, model.probabilities(model.logits(faces.crops), faces.crops, "natural")))
    found = scores(join([faces for faces, _ in held_out]), np.concatenate([shares for _, shares in held_out]))
    table = scores_table({f"{found['faces']:,} faces": found})
    print_table(*table, title=f"{recipe.name}, {folds} folds")
    by_fold = [float((shares.argmax(axis=1) == faces.labels).mean()) for faces, shares in held_out]
    print("accuracy by fold, %: " + ", ".join(percent(share, 2) for share in by_fold))
    rows = [*table[1], *([f"accuracy, fold {fold}", percent(share, 2)] for fold, share in enumerate(by_fold))]
    files.write(table[0], rows, {**found, "accuracy_by_fold": by_fold})
