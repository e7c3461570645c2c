"""Command line `mien`: one file per command; large libraries are imported only when a command runs.

mien --help
"""

import io
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mien.app import VERSION
from mien.app.cli.label import EXIT_CODES, label
from mien.app.cli.models import doctor, models
from mien.app.cli.review import review
from mien.app.cli.serve import page, serve
from mien.app.cli.shared import FAILED, fail
from mien.app.cli.training import add_training_commands
from mien.app.cli.webcam import webcam
from mien.data.errors import MienError


class Program(TyperGroup):
    """All commands; an expected error is printed as one line, and exits with its code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except BrokenPipeError:  # Typer exits without a message, as after `| head`.
            raise
        except (MienError, OSError) as error:
            fail(str(error), error.exit_code if isinstance(error, MienError) else FAILED)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"mien {VERSION}")
        raise typer.Exit


app = typer.Typer(
    name="mien",
    cls=Program,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Labels describe visible expressions, not feelings. Settings: the MIEN_* environment variables.",
    help="Find the faces in photos and label their expressions, with calibrated probabilities.",
)
app.command(epilog=EXIT_CODES)(label)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for _command in (review, serve, webcam, page, doctor):
    app.command()(_command)
app.add_typer(models, name="models")
add_training_commands(app)


def main() -> None:
    """Run the program."""
    # In another encoding, files cannot be named like their photos. Only the start of Python can change it.
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (no shell)
    # Redirected to a file on Windows, the output has a code page without bars and without most names of files.
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_utf = sys.stdout.encoding.lower().startswith("utf")
        sys.stdout.reconfigure(encoding=None if is_utf else "utf-8", errors="surrogateescape")  # Paths have any bytes.
    app()
