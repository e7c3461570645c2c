"""Commands `mien data | train | evaluate | export | ...`.

Serving does not import training: each command checks that its libraries are installed, and then imports its module.
"""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Final

import typer

from mien.app.cli.shared import FAILED

COMMANDS: Final = {
    "train": "Train one network from a recipe.",
    "evaluate": "Evaluate a released artifact or a run on one split.",
    "compare": "Compare two artifacts or runs on the same faces, before and after tuning.",
    "cross-validate": "Train and evaluate a recipe by folds.",
    "experiment": "Train variants of a recipe and compare them.",
    "export": "Release a run as an artifact.",
    "quantize": "Add an int8 graph to an artifact if it is faster and as accurate.",
}
_LIBRARIES: Final = ("torch", "timm", "albumentations", "onnx", "scipy")
_PASS_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def add_training_commands(app: typer.Typer) -> None:
    """Add `data` and the commands in `COMMANDS`."""
    data = {"data": "Check a data set: `mien data check KIND ROOT`."}
    for name, help_ in (data | COMMANDS).items():
        app.command(name, help=help_, context_settings=_PASS_ON, add_help_option=False, rich_help_panel="Training")(
            _command(name) if name in COMMANDS else _data
        )


def _data(context: typer.Context) -> None:
    importlib.import_module("mien.app.cli.data").main(context.args)


def _command(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        missing = [library for library in _LIBRARIES if importlib.util.find_spec(library) is None]
        if missing:
            typer.echo(
                f"mien {name}: {', '.join(missing)} not installed. Install the training packages: "
                "pip install 'mien[train]'; or, in a clone, sh requirements/install.sh .venv-train train, then "
                ".venv-train/bin/mien",
                err=True,
            )
            raise typer.Exit(FAILED)
        raise typer.Exit(importlib.import_module("mien.training.cli").main([name, *context.args]))

    return run
