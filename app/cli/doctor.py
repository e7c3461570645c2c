"""Command `mien doctor`: a check of the installation."""

import typer

from mien.app.cli.exit_codes import FAILED
from mien.app.cli.options import DetectorName, Model, OnDevice, fail, printed_errors


def doctor(model: Model = None, device: OnDevice = None, detector: DetectorName = None) -> None:
    """Check packages, detector, model and device. Exits with status 1 if a check fails."""
    with printed_errors():
        try:
            from mien.app.cli.checks import examine
        except ImportError as error:
            fail(f"a package cannot be imported: {error}. Install what is missing, or install Mien again", FAILED)

        passed = examine({"model": model, "device": device, "detector": detector})
    raise typer.Exit(0 if passed else FAILED)
