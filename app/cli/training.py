"""Commands `mien data | train | evaluate | export | report | ...`, all in `MODULES`.

Serving does not import training: each command checks that its libraries are installed and then runs its module.
"""

import importlib.util
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import typer

from app.cli.exit_codes import FAILED


@dataclass(frozen=True, slots=True)
class Module:
    """A module with its own command line, which gets all arguments."""

    name: str
    help: str
    needs: tuple[str, ...] = ("torch", "timm", "albumentations", "onnx", "scipy")


MODULES: Final = {
    "data": Module("data", "Check a data set: `mien data check KIND ROOT`.", needs=()),
    "train": Module("training.train", "Train one network from a recipe."),
    "pretrain": Module("training.pretrain", "Pretrain a transformer on faces without labels."),
    "evaluate": Module("training.evaluate", "Evaluate a released artifact on one split."),
    "compare": Module("training.compare", "Compare two artifacts on the same faces, before and after tuning."),
    "cross-validate": Module("training.cross_validate", "Train and evaluate a recipe by folds."),
    "experiment": Module("training.experiment", "Train variants of a recipe and compare them."),
    "export": Module("training.export", "Release a run as an artifact."),
    "report": Module("training.report", "Write an HTML report about training runs."),
    "quantize": Module("training.quantize", "Add an int8 graph to an artifact if it is faster and as accurate."),
}
_PASS_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def add_training_commands(app: typer.Typer) -> None:
    """Add the commands in `MODULES`."""
    for name, module in MODULES.items():
        app.command(
            name, help=module.help, context_settings=_PASS_ON, add_help_option=False, rich_help_panel="Training"
        )(_command(name, module))


def _command(name: str, module: Module) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        missing = [library for library in module.needs if importlib.util.find_spec(library) is None]
        if missing:
            typer.echo(
                f"mien {name}: {', '.join(missing)} not installed. Install the training packages: "
                "sh requirements/install.sh .venv-train train, then .venv-train/bin/mien; or pip install -e '.[train]'",
                err=True,
            )
            raise typer.Exit(FAILED)
        sys.argv[1:] = context.args  # run_module sets argv[0]
        runpy.run_module(module.name, run_name="__main__", alter_sys=True)

    return run
