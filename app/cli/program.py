"""Typer application with all commands of `mien`."""

from typing import Annotated

import typer

from mien.app import VERSION
from mien.app.cli.doctor import doctor
from mien.app.cli.exit_codes import EXIT_CODES
from mien.app.cli.label import label
from mien.app.cli.models import models
from mien.app.cli.page import page
from mien.app.cli.review import review
from mien.app.cli.serve import serve
from mien.app.cli.training import add_training_commands
from mien.app.cli.webcam import webcam

_EPILOG = "Labels describe visible expressions, not feelings. Settings: the MIEN_* environment variables."
app = typer.Typer(
    name="mien",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
    help="Find the faces in photos and label their expressions, with calibrated probabilities.",
)
app.command(epilog=EXIT_CODES)(label)
for command in (review, serve, webcam, page, doctor):
    app.command()(command)
app.add_typer(models, name="models")
add_training_commands(app)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"mien {VERSION}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Define the global options."""
