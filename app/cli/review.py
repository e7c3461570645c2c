"""The command `mien review`: correct labels in the browser, or export the corrected faces."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import printed_errors


def review(
    out: Annotated[Path, typer.Argument(help="Folder that `mien label` has written.")],
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the reviewed faces as a class-folder data set, and leave.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Export unreviewed faces too, with the model's label.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 takes a free one.")] = 8001,
) -> None:
    """Correct labels in the browser, and export them for training.

    The page is served to this machine only. Corrections are kept in corrections.jsonl, beside the predictions.
    """
    with printed_errors():
        from app.labeling.review.export import write_export
        from app.labeling.review.server import serve_review

        if export is None:
            serve_review(out, port)
        else:
            typer.echo(write_export(out, export, everything=everything))
