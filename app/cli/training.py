"""Commands `mien data | train | evaluate | export | report | ...`, all in `MODULES`.

Serving does not import training: each command checks that its libraries are installed and then imports its module.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import typer

from mien.app.cli.exit_codes import FAILED


@dataclass(frozen=True, slots=True)
class Module:
    """A module whose function `main` parses all arguments and returns the exit code."""

    name: str
    help: str
    needs: tuple[str, ...] = ("torch", "timm", "albumentations", "onnx", "scipy")


MODULES: Final = {
    "data": Module("mien.app.cli.data", "Check a data set: `mien data check KIND ROOT`.", needs=()),
    "train": Module("mien.training.train", "Train one network from a recipe."),
    "evaluate": Module("mien.training.evaluate", "Evaluate a released artifact on one split."),
    "compare": Module("mien.training.compare", "Compare two artifacts on the same faces, before and after tuning."),
    "cross-validate": Module("mien.training.cross_validate", "Train and evaluate a recipe by folds."),
    "experiment": Module("mien.training.experiment", "Train variants of a recipe and compare them."),
    "export": Module("mien.training.export", "Release a run as an artifact."),
    "report": Module("mien.training.report.command", "Write an HTML report about training runs."),
    "quantize": Module("mien.training.quantize", "Add an int8 graph to an artifact if it is faster and as accurate."),
    "detector train": Module("mien.training.detector.train", "Train a face detector from images that YuNet labels."),
    "detector export": Module("mien.training.detector.export", "Release a face detector."),
    "detector evaluate": Module("mien.training.detector.evaluate", "Evaluate a face detector, next to YuNet."),
}
_PASS_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def add_training_commands(app: typer.Typer) -> None:
    """Add the commands in `MODULES`; two words are a command of a group."""
    detector = typer.Typer(help="Train, release and evaluate face detectors.", no_args_is_help=True)
    app.add_typer(detector, name="detector", rich_help_panel="Training")
    for name, module in MODULES.items():
        group, _, command = name.rpartition(" ")
        (detector if group else app).command(
            command, help=module.help, context_settings=_PASS_ON, add_help_option=False, rich_help_panel="Training"
        )(_command(name, module))


def _command(name: str, module: Module) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        missing = [library for library in module.needs if importlib.util.find_spec(library) is None]
        if missing:
            typer.echo(
                f"mien {name}: {', '.join(missing)} not installed. Install the training packages: "
                "pip install 'mien[train]'; or, in a clone, sh requirements/install.sh .venv-train train, then "
                ".venv-train/bin/mien",
                err=True,
            )
            raise typer.Exit(FAILED)
        if module.needs:  # help and usage errors, before imports that take seconds
            importlib.import_module("mien.training.arguments").parse(name, context.args)
        raise typer.Exit(importlib.import_module(module.name).main(context.args))

    return run
