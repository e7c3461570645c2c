"""Run of a training from the command line: recipe, overrides, run folder, one-line errors."""

import logging
import os
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
    except (MienError, OSError) as error:  # of the system: a full disk, no permission
        logger.error("%s", error)
        return 1
    except KeyboardInterrupt:
        logger.error("interrupted; rerun the same command to resume")
        return INTERRUPTED
    return 0
