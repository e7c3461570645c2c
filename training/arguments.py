"""Command lines of training; imports no training library, so that `--help` and usage errors are immediate."""

import argparse
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, get_args

from mien.data.folds import Grouping
from mien.models.manifest import ARTIFACTS_DIR, POINTERS, Prior
from mien.models.strict import expand_home

Parser = argparse.ArgumentParser
AddArguments = Callable[[Parser], None]
PARSERS: Final[dict[str, Parser]] = {}  # by command
_FIGURES: Final = (".png", ".svg", ".pdf")
_TABLES: Final = (".csv", ".tex", ".md")
_RECIPES: Final = Path(__file__).resolve().with_name("recipes")


def kind_and_root(text: str) -> tuple[str, Path]:
    """Argument of `--data`: kind and root of a data set."""
    kind, equals, root = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KIND=ROOT, for example ferplus=path/to/ferplus")
    return kind, expand_home(root)


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE, for example exclude_near_duplicates_of=train")
    return key, value


def _named(suffixes: tuple[str, ...]) -> Callable[[str], Path]:
    def path(text: str) -> Path:
        if not text.endswith(suffixes):
            raise argparse.ArgumentTypeError(f"{text!r}: expected a name that ends with {' or '.join(suffixes)}")
        return Path(text)

    return path


_figure, _table = _named(_FIGURES), _named(_TABLES)


def _at_least(minimum: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if int(text) < minimum:
            raise argparse.ArgumentTypeError(f"{text}: expected at least {minimum}")
        return int(text)

    return number


def _threshold(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text}: expected a number between 0 and 1")


def _add_data(parser: Parser, *, required: bool = True, default: str = "", split: str | None = "valid") -> None:
    """Add `--data`, `--option` and `--split`, which select the faces to evaluate on."""
    help_ = f"data set, e.g. ferplus=path/to/ferplus{default}"
    parser.add_argument("--data", type=kind_and_root, required=required, metavar="KIND=ROOT", help=help_)
    parser.add_argument(
        "--option", type=_key_and_value, action="append", default=[], metavar="KEY=VALUE", help="option of the reader"
    )
    parser.add_argument("--split", default=split, help="split to evaluate on (default: valid)")


def _add_recipe(parser: Parser) -> None:
    recipe = parser.add_argument("recipe", type=Path, help="YAML file in training/recipes/")
    recipe.required = False  # `parse` reports a missing one
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="overrides, e.g. optim.learning_rate=3e-4"
    )


def _add_runs(parser: Parser, default: str) -> None:
    parser.add_argument("--runs", type=Path, default=default, help="folder of the run folders (default: %(default)s)")


def _add_results(parser: Parser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    parser.add_argument("--table", type=_table, metavar="FILE", help="also write the table, as .csv, .tex or .md")


def _add_artifacts(parser: Parser) -> None:
    parser.add_argument("--artifacts", type=Path, default=ARTIFACTS_DIR, help="parent folder of artifacts")


def _command(name: str, description: str) -> Callable[[AddArguments], AddArguments]:
    """Give a command a parser with the arguments that a function adds to it."""

    def decorate(add_arguments: AddArguments) -> AddArguments:
        PARSERS[name] = Parser(prog=f"mien {name}", description=description)
        add_arguments(PARSERS[name])
        return add_arguments

    return decorate


@_command("train", "Train one network from a recipe.")
@_command("detector train", "Train a face detector from a recipe.")
def _train(parser: Parser) -> None:
    _add_recipe(parser)
    parser.add_argument("--out", type=Path, help="run folder (default: runs/<name>); an existing run is resumed")


@_command("evaluate", "Evaluate a released artifact.")
def _evaluate(parser: Parser) -> None:
    parser.add_argument("--artifact", required=True, help="artifact folder, or the name of a model, such as fast")
    _add_data(parser)
    _add_results(parser)
    parser.add_argument("--corruptions", action="store_true", help="also measure corrupted faces, balanced prior")
    parser.add_argument("--faces", type=_at_least(1), metavar="N", help="random faces to corrupt (default: all)")
    parser.add_argument(
        "--plot", type=_figure, metavar="FILE", help="draw the results of --corruptions: .png, .svg, .pdf"
    )


@_command("compare", "Compare two artifacts or runs.")
def _compare(parser: Parser) -> None:
    parser.add_argument("before", help="artifact or run folder, or the name of a model, such as fast")
    parser.add_argument("after", help="artifact or run folder, or the name of a model")
    parser.add_argument(
        "--prior", choices=get_args(Prior), default="balanced", help="of artifacts (default: %(default)s)"
    )
    _add_data(parser)
    _add_results(parser)


@_command("cross-validate", "Cross-validate a recipe.")
def _cross_validate(parser: Parser) -> None:
    _add_recipe(parser)
    parser.add_argument("--folds", type=_at_least(2), default=5)
    parser.add_argument("--group-by", choices=get_args(Grouping), default="none", help="what stays in one fold")
    _add_runs(parser, "runs/cross_validation")
    _add_results(parser)


@_command("experiment", "Train rows and compare them.")
def _experiment(parser: Parser) -> None:
    parser.add_argument("experiment", type=Path, help="file in training/recipes/experiments/")
    parser.add_argument("--reduced", action="store_true", help="use the smaller budget of the file")
    parser.add_argument(
        "--rows", help="rows to run, separated by commas; the first row and the rows that teach are always included"
    )
    parser.add_argument("--seeds", type=_at_least(1), metavar="N", help="seeds 0 to N-1 (default: those of the file)")
    _add_runs(parser, "runs/experiments")
    parser.add_argument("--plot", type=_figure, metavar="FILE", help="also draw the results, as .png, .svg or .pdf")
    parser.add_argument("--curves", type=_figure, metavar="FILE", help="also draw accuracy over training")
    _add_results(parser)


@_command("export", "Release runs as an artifact.")
def _export(parser: Parser) -> None:
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="run or artifact folders")
    parser.add_argument("--tag", help="distinguishes releases, e.g. ferplus_v1")
    parser.add_argument("--arch", help="first part of the name (default: from the recipe)")
    parser.add_argument("--one-view", action="store_true", help="several networks: leave out the mirror image")
    parser.add_argument("--also", action="append", default=[], metavar="KIND/SPLIT", help="also evaluate this split")
    _add_artifacts(parser)
    parser.add_argument(
        "--as", dest="pointer", choices=POINTERS, help="make it the model that serving loads under this name"
    )
    parser.add_argument("--refit", action="store_true", help="fit and evaluate the artifact FOLDER again")
    parser.add_argument("--conditions", action="store_true", help="measure the conditions of the artifact FOLDER again")
    parser.add_argument("--card", action="store_true", help="write license and card of the artifact FOLDER again")


@_command("report", "Write a report about training runs.")
def _report(parser: Parser) -> None:
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    _add_data(parser, required=False, default=" (default: validation data of the first recipe)", split=None)
    parser.add_argument("--out", type=Path, help="HTML file (default: report.html, or none with --markdown)")
    parser.add_argument("--markdown", action="store_true", help="print the table of runs as Markdown")
    parser.add_argument("--without-faces", action="store_true", help="leave out images of the data set, for sharing")


@_command("quantize", "Quantize an artifact's graph to int8 and compare it with fp32.")
def _quantize(parser: Parser) -> None:
    parser.add_argument("artifact", type=Path, help="folder with manifest.json")
    help_ = "data set, e.g. ferplus=path/to/ferplus"
    parser.add_argument("--data", type=kind_and_root, required=True, metavar="KIND=ROOT", help=help_)
    parser.add_argument(
        "--out", type=Path, help="write the artifact with its int8 graph to this folder, which may be the artifact"
    )
    parser.add_argument("--rounds", type=_at_least(1), default=60, help="timed inferences per graph and batch size")


@_command("detector export", "Release a face detector.")
def _detector_export(parser: Parser) -> None:
    parser.add_argument("run", type=Path, help="run folder")
    parser.add_argument("--tag", required=True, help="tag of the release, such as yunet_v3")
    parser.add_argument(
        "--threshold", type=_threshold, help="score threshold for serving; default: selected on validation images"
    )
    _add_artifacts(parser)
    parser.add_argument("--default", action="store_true", help="make it the default detector for serving")


@_command("detector evaluate", "Evaluate a released face detector, next to YuNet.")
def _detector_evaluate(parser: Parser) -> None:
    parser.add_argument("--artifact", type=Path, help="artifact folder (default: the default detector)")
    parser.add_argument("--json", type=Path, help="also write the metrics to this file")


def parse(name: str, arguments: list[str] | None) -> argparse.Namespace:
    """Parse the arguments of a command, in any order; exits with status 2 for a usage error."""
    options = PARSERS[name].parse_intermixed_args(arguments)
    if "recipe" in options and options.recipe is None:
        PARSERS[name].error(f"the recipe is missing. Give a YAML file, such as one of those in {_RECIPES}")
    return options
