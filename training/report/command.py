"""Report command: `mien report RUN... [--data KIND=ROOT] [--out report.html] [--markdown]`."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
import numpy as np
import yaml

from mien.data.atomic import write_atomic
from mien.training.config import DataSource, Recipe
from mien.training.faces import TEST, Split, read_split
from mien.training.loop.run_folder import RunError, read_run
from mien.training.report import figures
from mien.training.report.results import RunResult, measure, most_confident_mistakes
from mien.training.wording import interval, markdown_table, most_confused, percent

_HEADINGS: Final = (
    "run", "parameters", "epochs", "head", "accuracy", "mean class accuracy", "macro-F1", "ECE", "ECE, uncalibrated",
    "minutes", "images/s", "seed",
)  # fmt: skip


def gather(folders: list[Path], source: DataSource) -> tuple[list[RunResult], Split]:
    """Evaluate every run on one split; for a test split, `measure` is fitted on the recipe's validation split.

    Raises: RunError, CheckpointError, RecipeError, DatasetError.
    """
    recipes = [read_run(Recipe, folder) for folder in folders]
    names = [recipe.name for recipe in recipes]
    faces = read_split(source)
    results = []
    for folder, recipe in zip(folders, recipes, strict=True):
        fitting, valid = None, recipe.data.held_out
        if valid.fold is not None:
            raise RunError(f"{folder}: a fold of a cross-validation, trained on other faces of this split; no report")
        if source.split == TEST:
            fitting = read_split(valid.model_copy(update={"root": source.root}) if valid.kind == source.kind else valid)
        name = f"{recipe.name} ({folder})" if names.count(recipe.name) > 1 else recipe.name
        results.append(measure(folder, name, faces, fitting=fitting))
    return results, faces


def table_row(result: RunResult) -> tuple[str, ...]:
    """Cells of a run, in the order of the headings; shares in percent with their intervals."""
    scores, history, epochs = result.evaluation, result.history, result.recipe.epochs
    shares = (scores.accuracy, scores.mean_class_accuracy, scores.macro_f1)
    done = int(history.epochs[-1])
    return (
        result.name,
        f"{result.parameters / 1e6:.2f} M",
        f"{done}" if done == epochs else f"{done} of {epochs}",
        result.head,
        *(interval(share, 1) for share in shares),
        percent(scores.ece),
        percent(result.ece_raw),
        f"{history.minutes:.1f}",
        f"{history.faces_per_s:.0f}",
        str(result.recipe.seed),
    )


def page(results: list[RunResult], faces: Split, *, show_faces: bool = True) -> str:
    """One self-contained HTML document.

    Args:
        show_faces: whether to include images of faces; the terms of a data set may prohibit sharing them.
    """
    # nothing is marked as safe, so names from recipes and data sets are escaped
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FileSystemLoader(Path(__file__).parent)
    )
    environment.filters |= {"percent": percent, "interval": interval}
    with figures.in_style():
        runs = [
            _run_of_page(result, faces, show_faces=show_faces) | {"key": f"run-{number}"}
            for number, result in enumerate(results, start=1)
        ]
    return environment.get_template("page.html").render(
        faces=faces,
        show_faces=show_faces,
        headings=_HEADINGS,
        rows=[table_row(result) for result in results],
        runs=runs,
    )


def _run_of_page(result: RunResult, faces: Split, *, show_faces: bool) -> dict[str, Any]:
    valid, counts = result.recipe.data.held_out, np.array(result.evaluation.confusion)
    faces = faces.for_classes(result.classes, of=result.name)
    options = "".join(f", {name}={value}" for name, value in valid.options.items())
    mistakes = []
    for index in most_confident_mistakes(result.predicted, result.confidence, faces.labels) if show_faces else ():
        actual, predicted = result.classes[faces.labels[index]], result.classes[result.predicted[index]]
        votes = [] if faces.votes is None else list(zip(result.classes, faces.votes[index], strict=True))
        shares = sorted((vote for vote in votes if vote[1] > 0), key=lambda vote: -vote[1])
        face = figures.thumbnail(faces.crops[index], f"A face labeled {actual}")
        listed = ", ".join(f"{percent(share, 0)} % {label}" for label, share in shares)
        prediction = f"{predicted} {percent(result.confidence[index], 0)}"
        mistakes.append((face, faces.keys[index], actual, listed, prediction))
    return {
        "result": result,
        "labels": result.classes,
        "validated_on": f"{valid.kind} {valid.split}{options}",
        "worst": most_confused(counts, result.classes),
        "history": figures.history(result),
        "calibration": figures.calibration(result, faces.labels),
        "mistakes": mistakes,
        "recipe": yaml.safe_dump(result.recipe.model_dump(mode="json"), sort_keys=False),
        "facts": yaml.safe_dump(result.facts, sort_keys=False),
    }


def choose(
    valid: DataSource, *, data: tuple[str, Path] | None, split: str | None, options: Mapping[str, Any]
) -> DataSource:
    """Choose the split to show: by default `valid`, the validation split of the first run's recipe.

    Raises: RecipeError, if there is neither `data` nor a root in the recipe.
    """
    kind, root = data or (valid.kind, valid.resolved_root())
    same = kind == valid.kind
    known = {**(valid.options if same else {}), **options}
    return DataSource(kind=kind, split=split or (valid.split if same else "valid"), root=root, options=known)


def run(
    folders: list[Path],
    *,
    data: tuple[str, Path] | None,
    split: str | None,
    options: Mapping[str, Any],
    out: Path | None,
    markdown: bool,
    show_faces: bool,
) -> None:
    """Write the page, or print the table of runs; see `choose`."""
    valid = read_run(Recipe, folders[0]).data.held_out
    results, faces = gather(folders, choose(valid, data=data, split=split, options=options))
    if markdown:
        print(f"{faces.title}; shares in % with 95 % intervals over faces:\n")
        print(markdown_table(_HEADINGS, map(table_row, results)))
    if out or not markdown:
        out = out or Path("report.html")
        write_atomic(out, page(results, faces, show_faces=show_faces))
        print(f"wrote {out}", file=sys.stderr)
    for result in results:
        for warning in result.warnings:
            print(f"warning: {result.name}: {warning}", file=sys.stderr)
