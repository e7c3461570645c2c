"""Commands of training: arguments, recipe, run folder, log, exit codes and one-line errors."""

import functools
import logging
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from rich.logging import RichHandler

from mien.data.errors import MienError
from mien.training.arguments import parse
from mien.training.config import RunRecipe, read_as

INTERRUPTED: Final = 130  # exit status, as in a shell after Ctrl-C
Main = Callable[..., int]  # of a list of arguments, or None for those of the process; returns the exit code
R = TypeVar("R", bound=RunRecipe)


def command(name: str, *, log_level: int | None = None) -> Callable[[Callable[[Namespace], None]], Main]:
    """Make a function of parsed options a command line, which prints errors in one line and returns the exit code.

    Args:
        log_level: log to the terminal, with messages of libraries from this level; None: print errors only.
    """

    def decorate(run: Callable[[Namespace], None]) -> Main:
        @functools.wraps(run)
        def main(arguments: list[str] | None = None) -> int:
            options = parse(name, arguments)
            if log_level is not None:
                _log_to_terminal(log_level)
            try:
                run(options)
            except (MienError, OSError) as error:  # of the system: a full disk, no permission
                print(f"error: {error}", file=sys.stderr)
                return 1
            except KeyboardInterrupt:
                print("interrupted; rerun the same command to resume", file=sys.stderr)
                return INTERRUPTED
            return 0

        return main

    return decorate


def _log_to_terminal(log_level: int) -> None:
    first = os.environ.get("RANK", "0") == "0"  # set by torchrun
    handler = RichHandler(show_path=False)
    logging.basicConfig(level=log_level if first else logging.ERROR, format="%(message)s", handlers=[handler])
    logging.getLogger("mien").setLevel(logging.INFO if first else logging.ERROR)


def recipe_command(name: str, schema: type[R], run: Callable[[R, Path], Path]) -> Main:
    """Make a function of a recipe and a run folder a command line; see `command`."""

    @command(name, log_level=logging.INFO)
    def main(options: Namespace) -> None:
        recipe = read_as(schema, options.recipe, options.overrides)
        run(recipe, options.out or Path("runs") / recipe.name)

    return main
