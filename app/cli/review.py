"""Command `mien review`: correction of labels in the browser, and export of reviewed faces."""

from pathlib import Path
from typing import Annotated

import typer

from mien.app.cli.shared import USAGE, fail


def review(
    out: Annotated[Path, typer.Argument(help="Output folder of `mien label`.")],
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Export the reviewed faces as class folders, and exit.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Export unreviewed faces too, with the model's label.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any free port.")] = 8001,
) -> None:
    """Correct labels in the browser, and export them for training.

    The page is served to this machine only. Corrections are saved in corrections.jsonl in the output folder,
    and the tables and the report are updated when the page is stopped with Ctrl-C.
    """
    if everything and export is None:
        fail("--all needs --export.", USAGE)
    from mien.app.labeling.review.export import write_export
    from mien.app.labeling.review.server import serve_review

    if export is None:
        serve_review(out, port)
    else:
        typer.echo(write_export(out, export, everything=everything))
