"""Commands `mien models pull | list | verify`, and `mien doctor`, a check of the installation."""

from pathlib import Path
from typing import Annotated

import typer

from mien.app.cli.shared import FAILED, DetectorName, Model, OnDevice, fail, printed_errors

models = typer.Typer(no_args_is_help=True, help="Download, list and verify models.")


@models.command("pull")
def models_pull(
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder (default: MIEN_MODELS_DIR or the user cache).")
    ] = None,
    optional: Annotated[
        bool, typer.Option("--optional", help="Give up after 3 s without an error, and print the detector in use.")
    ] = False,
) -> None:
    """Download YuNet, the face detector, and verify its pinned hash."""
    with printed_errors():
        from mien.app.inference.detector_files import fetch_yunet
        from mien.app.settings import load_settings

        folder = to or load_settings().models_dir
        typer.echo(_pulled_if_possible(folder) if optional else f"YuNet is at {fetch_yunet(folder)}")


def _pulled_if_possible(folder: Path | None) -> str:
    """One line on the detector in use, after one attempt to download YuNet where it is missing."""
    from mien.app.errors import DownloadError
    from mien.app.inference.detector_files import (
        OPTIONAL_TIMEOUT_S,
        detector_name,
        detector_source,
        fetch_yunet,
        find_yunet,
    )
    from mien.app.settings import load_settings
    from mien.data.errors import MienError

    failed = ""
    try:
        if find_yunet(folder) is None:
            try:
                fetch_yunet(folder, timeout_s=OPTIONAL_TIMEOUT_S)
            except DownloadError:
                failed = "; YuNet could not be downloaded, `mien models pull` tries again and says why"
        settings = load_settings(models_dir=folder)
        name = detector_name(settings)
        return f"Detector: {name} ({detector_source(name, settings)}){failed}"
    except MienError as error:
        return f"Detector: {error}"


@models.command("list")
def models_list() -> None:
    """List the released artifacts and the detectors."""
    with printed_errors():
        from mien.app.cli.checks import list_models

        list_models()


@models.command("verify")
def models_verify(
    model: Annotated[
        str | None,
        typer.Argument(help="Artifact folder, or the name of a model (default: all released artifacts)."),
    ] = None,
) -> None:
    """Verify the hashes of all artifact files and of the detector."""
    with printed_errors():
        from mien.app.cli.checks import verify_models
        from mien.models.manifest import artifact_dir

        passed = verify_models(None if model is None else artifact_dir(model))
    raise typer.Exit(0 if passed else FAILED)


def doctor(model: Model = None, device: OnDevice = None, detector: DetectorName = None) -> None:
    """Check packages, detector, model and device. Exits with status 1 if a check fails."""
    with printed_errors():
        try:
            from mien.app.cli.checks import examine
        except ImportError as error:
            fail(f"a package cannot be imported: {error}. Install what is missing, or install Mien again", FAILED)

        passed = examine({"model": model, "device": device, "detector": detector})
    raise typer.Exit(0 if passed else FAILED)
