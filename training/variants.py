"""Rows of an experiment: variants of a recipe, from one YAML file in training/recipes/experiments."""

import itertools
import json
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, Self

from pydantic import Field, model_validator

from mien.models.strict import StrictModel
from mien.training.config import Recipe, RecipeError, read_as

RUNS: Final = Path("runs/experiments")
Overrides = tuple[str, ...]


class Plot(StrictModel):
    """Figure with a line per model: the row of each position on a logarithmic axis."""

    x: str = Field(description="title of the horizontal axis")
    panels: dict[str, dict[str, dict[float, str]]] = Field(description="rows by panel, line and position")


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
    plot: Plot | None = Field(None, description="figure of --plot; null: one interval per row")

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
        drawn = [] if self.plot is None else [line for panel in self.plot.panels.values() for line in panel.values()]
        if unknown := sorted({row for line in drawn for row in line.values()} - set(self.rows)):
            raise ValueError(f"no row {', '.join(unknown)}; it has {', '.join(self.rows)}")
        return self

    def overrides(self, row: str) -> Overrides:
        """Overrides of one row, the strongest last."""
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
    unknown = set(rows or []) - set(experiment.rows)
    if unknown:
        raise RecipeError(
            f"experiment {path}: no row {', '.join(sorted(unknown))}; it has {', '.join(experiment.rows)}"
        )
    seeds = list(seeds or experiment.seeds)
    recipes: dict[str, list[Recipe]] = {}
    base = (path.parent / experiment.base).resolve()
    for row in experiment.rows:
        for seed in seeds:
            own = [
                change.replace("{seed}", str(seed)).replace("{runs}", str(runs)) for change in experiment.overrides(row)
            ]
            recipe = read_as(Recipe, base, [*own, f"seed={seed}", f"name={path.stem}_{row}_{seed}"])
            recipes.setdefault(row, []).append(recipe)
    needed = _with_teachers({next(iter(recipes)), *(rows or experiment.rows)}, recipes, runs)
    return {row: of_seeds for row, of_seeds in recipes.items() if row in needed}


def _with_teachers(chosen: set[str], recipes: dict[str, list[Recipe]], runs: Path) -> set[str]:
    """Add the rows whose runs teach one of the chosen rows."""
    row_of = {runs / recipe.name: row for row, of_seeds in recipes.items() for recipe in of_seeds}
    wanted = [teacher for row in chosen for recipe in recipes[row] for teacher in recipe.distillation.teachers]
    more = {row_of[teacher] for teacher in wanted if teacher in row_of} - chosen
    return _with_teachers(chosen | more, recipes, runs) if more else chosen
