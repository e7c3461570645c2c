"""Commands `mien data | train | evaluate | export | ...`.

Serving does not import training: each command checks that its libraries are installed, and then imports its module.
"""

import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Final

import typer

from mien.app.cli.shared import FAILED

if TYPE_CHECKING:
    from mien.data.contract import Array

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
_MIN_SEARCHED_PX: Final = 144  # Detectors find few of the faces that fill a smaller image.
_PASS_ON: Final = {"allow_extra_args": True, "ignore_unknown_options": True}


def add_training_commands(app: typer.Typer) -> None:
    """Add `data` and the commands in `COMMANDS`."""
    data = {"data": "Check a data set: `mien data check KIND ROOT`."}
    for name, help_ in (data | COMMANDS).items():
        app.command(name, help=help_, context_settings=_PASS_ON, add_help_option=False, rich_help_panel="Training")(
            _command(name) if name in COMMANDS else _data
        )


def _data(context: typer.Context) -> None:
    """Run the command of the data package, with the face detector of serving to recognize whole photos."""
    import cv2

    from mien.app.inference.detector_files import create_detector
    from mien.app.settings import load_settings
    from mien.data import check

    detector = cache(lambda: create_detector(load_settings(threads=1)))

    def face_share(image: "Array") -> float:
        """Width of the largest face over the shorter side of an image, (H, W, 3) uint8 RGB; 0 without a face."""
        factor = max(1.0, _MIN_SEARCHED_PX / min(image.shape[:2]))
        searched = cv2.resize(image, None, fx=factor, fy=factor, interpolation=cv2.INTER_LINEAR)
        widths = [face.box.width for face in detector().detect(searched)]
        return float(max(widths, default=0.0) / min(searched.shape[:2]))

    check.main(context.args, face_share=face_share)


def _command(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        missing = [library for library in _LIBRARIES if importlib.util.find_spec(library) is None]
        if missing:
            typer.echo(
                f"mien {name}: {', '.join(missing)} not installed. Install the training packages: "
                "sh requirements/install.sh .venv-train train, in a clone, then .venv-train/bin/mien",
                err=True,
            )
            raise typer.Exit(FAILED)
        raise typer.Exit(importlib.import_module("mien.training.cli").main([name, *context.args]))

    return run
