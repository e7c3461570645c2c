"""Commands `mien models pull | list`, and `mien doctor`, a check of the installation."""

from pathlib import Path
from typing import Annotated

import typer

from mien.app.cli.shared import FAILED, DetectorName, Model, OnDevice, fail

models = typer.Typer(no_args_is_help=True, help="Download and list models.")


@models.command("pull")
def models_pull(
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder (default: MIEN_MODELS_DIR or the user cache).")
    ] = None,
) -> None:
    """Download YuNet, the face detector, and verify its pinned hash."""
    from mien.app.inference.detector_files import fetch_yunet
    from mien.app.settings import load_settings

    typer.echo(f"YuNet is at {fetch_yunet(to or load_settings().models_dir)}")


@models.command("list")
def models_list() -> None:
    """List the released artifacts and the detectors, and verify their hashes."""
    from mien.app.cli.checks import list_models

    passed = list_models()
    raise typer.Exit(0 if passed else FAILED)


def doctor(model: Model = None, device: OnDevice = None, detector: DetectorName = None) -> None:
    """Check packages, detector, model and device. Exits with status 1 if a check fails."""
    try:
        from mien.app.cli.checks import examine
    except ImportError as error:
        fail(f"a package cannot be imported: {error}. Install what is missing, or install Mien again", FAILED)

    passed = examine({"model": model, "device": device, "detector": detector})
    raise typer.Exit(0 if passed else FAILED)
