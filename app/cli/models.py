"""The commands `mien models pull | list | verify | triton`."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.exit_codes import FAILED
from app.cli.options import Model, printed_errors

models = typer.Typer(no_args_is_help=True, help="Download, list and verify models.")


@models.command("pull")
def models_pull(
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder (default: MIEN_MODELS_DIR or the user cache).")
    ] = None,
) -> None:
    """Download YuNet, the face detector, and verify its pinned hash."""
    with printed_errors():
        from app.inference.detect.weights import fetch_yunet
        from app.settings import load_settings

        typer.echo(f"YuNet is at {fetch_yunet(to or load_settings().models_dir)}")


@models.command("list")
def models_list() -> None:
    """List the released artifacts and the detectors."""
    with printed_errors():
        from app.cli.checks import list_models

        list_models()


@models.command("verify")
def models_verify(
    folder: Annotated[Path | None, typer.Argument(help="Artifact folder (default: all released artifacts).")] = None,
) -> None:
    """Verify the hash of every artifact file and of the detector."""
    with printed_errors():
        from app.cli.checks import verify_models

        passed = verify_models(folder)
    raise typer.Exit(0 if passed else FAILED)


@models.command("triton")
def models_triton(
    out: Annotated[Path, typer.Argument(help="Model repository. Only this model is replaced.")],
    model: Model = None,
    half: Annotated[bool, typer.Option("--half", help="Use the fp16 graph, for GPUs.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="Run the model on a GPU.")] = False,
) -> None:
    """Write the classifier as a model repository for NVIDIA Triton Inference Server."""
    with printed_errors():
        from app.inference.runtime.triton import write_repository
        from models.manifest import artifact_dir

        chosen = artifact_dir(model)
        folder = write_repository(chosen, out, precision="fp16" if half else "fp32", device="gpu" if gpu else "cpu")
        typer.echo(f"Wrote Triton's model to {folder}")
