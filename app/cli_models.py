"""Which models are here, and are they sound? The commands `mien models pull | list | verify | triton`."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli_support import FAILED, Model, spoken_errors

models = typer.Typer(no_args_is_help=True, help="Fetch, list and verify the models.")


@models.command("pull")
def models_pull(
    to: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder; MIEN_MODELS_DIR or the user cache.")] = None,
) -> None:
    """Fetch YuNet, the face detector, once; it is checked against its pinned hash."""
    with spoken_errors():
        from app.detect.weights import fetch_yunet
        from app.settings import load_settings

        typer.echo(f"YuNet is at {fetch_yunet(to or load_settings().models_dir)}")


@models.command("list")
def models_list() -> None:
    """List the released artefacts and the detectors."""
    with spoken_errors():
        from app.doctor import list_models

        list_models()


@models.command("verify")
def models_verify(
    folder: Annotated[Path | None, typer.Argument(help="Artefact folder; all released ones when not given.")] = None,
) -> None:
    """Compare every file of the artefacts and the detector with its pinned hash."""
    with spoken_errors():
        from app.doctor import verify_models

        sound = verify_models(folder)
    raise typer.Exit(0 if sound else FAILED)


@models.command("triton")
def models_triton(
    out: Annotated[Path, typer.Argument(help="Model repository; only this model in it is replaced.")],
    model: Model = None,
    half: Annotated[bool, typer.Option("--half", help="The fp16 graph, for GPUs.")] = False,
    gpu: Annotated[bool, typer.Option("--gpu", help="Have Triton run it on a GPU.")] = False,
) -> None:
    """Write the classifier as a model repository for NVIDIA Triton Inference Server."""
    with spoken_errors():
        from app.triton import write_repository
        from models.manifest import default_artefact_dir

        chosen = model or default_artefact_dir()
        folder = write_repository(chosen, out, precision="fp16" if half else "fp32", device="gpu" if gpu else "cpu")
        typer.echo(f"Triton's model is at {folder}")
