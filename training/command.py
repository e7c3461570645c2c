"""Commands of training: arguments, recipe, run folder, exit codes and one-line errors."""

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

logger = logging.getLogger("mien.training")
INTERRUPTED: Final = 130  # exit status, as in a shell after Ctrl-C


R = TypeVar("R", bound=RunRecipe)


def command(name: str) -> Callable[[Callable[[Namespace], None]], Callable[..., int]]:
    """Make a function of parsed options a command line, which prints errors in one line and returns the exit code."""

    def decorate(run: Callable[[Namespace], None]) -> Callable[..., int]:
        @functools.wraps(run)
        def main(arguments: list[str] | None = None) -> int:
            options = parse(name, arguments)
            try:
                run(options)
            except (MienError, OSError) as error:  # of the system: a full disk, no permission
                print(f"error: {error}", file=sys.stderr)
                return 1
            return 0

        return main

    return decorate


def run_command(name: str, schema: type[R], run: Callable[[R, Path], Path], arguments: list[str] | None) -> int:
    """Parse the command line, read the recipe and run it; returns the exit code."""
    options = parse(name, arguments)

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
    except (MienError, OSError) as error:
        logger.error("%s", error)
        return 1
    except KeyboardInterrupt:
        logger.error("interrupted; rerun the same command to resume")
        return INTERRUPTED
    return 0
