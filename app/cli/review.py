"""Command `mien review`: correction of labels in the browser, and export of reviewed faces."""

from pathlib import Path
from typing import Annotated

import typer

from mien.app.cli.exit_codes import USAGE
from mien.app.cli.options import fail, printed_errors


def review(
    out: Annotated[Path, typer.Argument(help="Output folder of `mien label`.")],
    export: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Export the reviewed faces as class folders, and exit.")
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Export unreviewed faces too, with the model's label.")
    ] = False,
    sample: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Label N faces without seeing the model's labels.")
    ] = None,
    reviewer: Annotated[str, typer.Option(metavar="NAME", help="Your name, for reviewed_by and --sample.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0: any free port.")] = 8001,
) -> None:
    """Correct labels in the browser, and export them for training.

    The page is served to this machine only. Corrections are saved in corrections.jsonl in the output folder,
    and the tables and the report are updated when the page is stopped with Ctrl-C.
    With --sample, every reviewer labels the same faces, and /decisions.csv has the decisions of all of them.
    """
    if sample is not None and not reviewer:
        fail("--sample needs --reviewer.", USAGE)
    if everything and export is None:
        fail("--all needs --export.", USAGE)
    if sample is not None and export is not None:
        fail("--sample and --export cannot be combined: decisions about a sample are not exported.", USAGE)
    with printed_errors():
        from mien.app.labeling.review.export import write_export
        from mien.app.labeling.review.server import serve_review

        if export is None:
            serve_review(out, port, sample or 0, reviewer)
        else:
            typer.echo(write_export(out, export, everything=everything))
