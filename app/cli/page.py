"""Command `mien page`: the page as static files."""

from pathlib import Path
from typing import Annotated

import typer

from mien.app.cli.shared import Model, PriorName, printed_errors
from mien.app.labeling.options import parse_folder


def page(
    folder: Annotated[
        Path, typer.Argument(parser=parse_folder, help="Folder to write; files of an earlier page are replaced.")
    ],
    model: Model = None,
    prior: PriorName = None,
) -> None:
    """Write the page as a folder of static files that labels in the browser, for any web server."""
    with printed_errors():
        from mien.app.service.page import write_page
        from mien.app.settings import load_settings

        write_page(folder, load_settings(model=model, prior=prior))
        typer.echo(f"Wrote the page to {folder}. Try it: python3 -m http.server --directory {folder}")
