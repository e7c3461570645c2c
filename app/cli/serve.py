"""Commands `mien serve`, the HTTP service, and `mien page`, its page as static files."""

import logging.config
import os
from pathlib import Path
from typing import Annotated

import typer

from mien.app.cli.shared import FAILED, DetectorName, Model, OnDevice, PriorName
from mien.app.labeling.options import parse_folder


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on (default: 127.0.0.1).")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port (default: 8000).")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that share the port.")] = None,
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
    prior: PriorName = None,
) -> None:
    """Serve the HTTP API, POST /v1/expressions, and its documentation at /docs."""
    from mien.app.service.metrics import log_config
    from mien.app.service.start import run
    from mien.app.settings import load_settings
    from mien.data.errors import MienError

    options = {
        "host": host, "port": port, "workers": workers, "model": model, "device": device, "detector": detector,
        "prior": prior,
    }  # fmt: skip
    try:
        run(load_settings(**options))
    except (MienError, OSError) as error:
        if os.environ.get("MIEN_LOG_FORMAT") != "json":
            raise
        logging.config.dictConfig(log_config("json"))
        logging.getLogger(__name__).critical("%s", error)
        raise typer.Exit(FAILED) from None


def page(
    folder: Annotated[
        Path, typer.Argument(parser=parse_folder, help="Folder to write; files of an earlier page are replaced.")
    ],
    model: Model = None,
    prior: PriorName = None,
) -> None:
    """Write the page as a folder of static files that labels in the browser, for any web server."""
    from mien.app.service.page import write_page
    from mien.app.settings import load_settings

    write_page(folder, load_settings(model=model, prior=prior))
    typer.echo(f"Wrote the page to {folder}. Try it: python3 -m http.server --directory {folder}")
