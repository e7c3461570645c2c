"""Report command: `mien report RUN... [--data KIND=ROOT] [--out report.html] [--markdown]`."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mien.data.atomic import write_atomic
from mien.data.errors import MienError
from mien.training.command import key_and_value
from mien.training.config import DataSource, RecipeError
from mien.training.faces import TEST, FaceSet, read_faces
from mien.training.loop.run_folder import read_run
from mien.training.report.overview import as_markdown
from mien.training.report.page import page
from mien.training.report.results import RunResult, measure, names_of


def gather(folders: list[Path], source: DataSource, *, root: Path) -> tuple[list[RunResult], FaceSet]:
    """Evaluate every run on one split.

    Args:
        folders: the runs.
        source: split to show; for a test split, temperature and threshold are fitted on the recipe's validation split.
        root: folder or zip of the data set.
    Raises: RunError, CheckpointError, RecipeError, DatasetError.
    """
    recipes = [read_run(folder) for folder in folders]
    faces = read_faces(source.kind, root, source.split, source.options)
    known: dict[str, FaceSet] = {}
    results = []
    for folder, recipe, name in zip(folders, recipes, names_of(folders, recipes), strict=True):
        fitting = None
        if source.split == TEST:
            valid = recipe.data.valid
            if valid.model_dump_json() not in known:
                known[valid.model_dump_json()] = _read_validation(valid, source, root)
            fitting = known[valid.model_dump_json()]
        results.append(measure(folder, name, faces, fitting=fitting))
    return results, faces


def _read_validation(valid: DataSource, shown: DataSource, root: Path) -> FaceSet:
    """Read a recipe's validation split; if it is from the shown data set, use the same copy."""
    place = root if valid.kind == shown.kind else valid.resolved_root()
    return read_faces(valid.kind, place, valid.split, valid.options)


def choose(
    valid: DataSource, *, data: str | None, split: str | None, options: Mapping[str, Any]
) -> tuple[DataSource, Path]:
    """Choose the split to show: by default `valid`, the validation split of the first run's recipe.

    Raises: RecipeError, if `data` is not KIND=ROOT, or if there is neither `data` nor a root in the recipe.
    """
    if data is None:
        kind, root = valid.kind, valid.resolved_root()
    else:
        kind, equals, text = data.partition("=")
        if not equals:
            raise RecipeError(f"--data {data!r}: expected KIND=ROOT, for example ferplus=path/to/ferplus")
        root = Path(text)
    same = kind == valid.kind
    wanted = split or (valid.split if same else "valid")
    known = {**(valid.options if same else {}), **options}
    return DataSource(kind=kind, split=wanted, root=root, options=known), root


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="mien report", description="Write a report about training runs.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    parser.add_argument(
        "--data", metavar="KIND=ROOT", help="data set to evaluate on (default: validation data of the first recipe)"
    )
    parser.add_argument(
        "--option", type=key_and_value, action="append", default=[], metavar="KEY=VALUE", help="option of the reader"
    )
    parser.add_argument("--split", help="split to evaluate on (default: validation split of the recipe)")
    parser.add_argument("--out", type=Path, help="HTML file (default: report.html, or none with --markdown)")
    parser.add_argument("--markdown", action="store_true", help="print the table of runs as Markdown")
    parser.add_argument("--without-faces", action="store_true", help="leave out images of the data set, for sharing")
    chosen = parser.parse_args(arguments)
    try:
        source, root = choose(
            read_run(chosen.runs[0]).data.valid, data=chosen.data, split=chosen.split, options=dict(chosen.option)
        )
        results, faces = gather(chosen.runs, source, root=root)
        if chosen.markdown:
            print(as_markdown(results, faces))
        if chosen.out or not chosen.markdown:
            out = chosen.out or Path("report.html")
            write_atomic(out, page(results, faces, show_faces=not chosen.without_faces))
            print(f"wrote {out}", file=sys.stderr)
    except (MienError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
