"""Command line shared by all trainings: recipe, overrides, run folder, one-line errors."""

import argparse
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from rich.logging import RichHandler

from mien.data.errors import MienError
from mien.training.config import RunRecipe, read_as

logger = logging.getLogger("mien.training")
INTERRUPTED: Final = 130  # exit status, as in a shell after Ctrl-C


R = TypeVar("R", bound=RunRecipe)


def kind_and_root(text: str) -> tuple[str, Path]:
    """Argument of `--data`: kind and root of a data set."""
    kind, equals, root = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KIND=ROOT, for example ferplus=path/to/ferplus")
    return kind, Path(root)


def key_and_value(text: str) -> tuple[str, str]:
    """Argument of `--option`: name and value of a reader's option."""
    key, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: expected KEY=VALUE, for example exclude_near_duplicates_of=train")
    return key, value


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--data`, `--option` and `--split`, which select the faces to evaluate on."""
    help_ = "data set, e.g. ferplus=path/to/ferplus"
    parser.add_argument("--data", type=kind_and_root, required=True, metavar="KIND=ROOT", help=help_)
    help_ = "option of the reader"
    parser.add_argument("--option", type=key_and_value, action="append", default=[], metavar="KEY=VALUE", help=help_)
    parser.add_argument("--split", default="valid")


def run_command(
    name: str, description: str, schema: type[R], run: Callable[[R, Path], Path], arguments: list[str] | None
) -> int:
    """Parse the command line, read the recipe and run it; returns the exit code."""
    parser = argparse.ArgumentParser(prog=f"mien {name}", description=description)
    parser.add_argument("recipe", type=Path, help="YAML file in training/recipes/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides, e.g. optim.learning_rate=3e-4")
    parser.add_argument("--out", type=Path, help="run folder (default: runs/<name>); an existing run is resumed")
    options = parser.parse_intermixed_args(arguments)

    def work() -> None:
        recipe = read_as(schema, options.recipe, options.overrides)
        run(recipe, options.out or Path("runs") / recipe.name)

    return exit_code(work)


def exit_code(work: Callable[[], None]) -> int:
    """Run a training that logs to the terminal; errors are logged in one line. Returns the exit code."""
    level = logging.INFO if os.environ.get("RANK", "0") == "0" else logging.ERROR  # set by torchrun
    logging.basicConfig(level=level, format="%(message)s", handlers=[RichHandler(show_path=False)])
    try:
        work()
    except MienError as error:
        logger.error("%s", error)
        return 1
    except KeyboardInterrupt:
        logger.error("interrupted; rerun the same command to resume")
        return INTERRUPTED
    return 0
