"""Command `mien webcam`: the page with a camera, or live labels of a camera, video or stream."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mien.app.cli.exit_codes import USAGE
from mien.app.cli.options import DetectorName, Model, OnDevice, PriorName, fail, printed_errors


def webcam(
    source: Annotated[
        str | None,
        typer.Option(
            "--source", "-s", metavar="0|FILE|URL", help="Label a camera, video file or stream without the page."
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            "-w",
            metavar="FILE.mp4|FILE.csv",
            help="Save the annotated video of --source, or a table of episodes.",
        ),
    ] = None,
    window: Annotated[bool, typer.Option(help="Show --source in a window, if there is a display.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per frame of --source, for other programs.")
    ] = False,
    reconnect: Annotated[
        Literal["always", "never"], typer.Option(help="Whether --source is opened again after an outage.")
    ] = "always",
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the page (default: 8000, or any free port).")
    ] = None,
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
    prior: PriorName = None,
) -> None:
    """Label expressions live: on a web page with your camera, or --source in a window or the terminal.

    The page is served to this machine only. Nothing is stored except the file named by --write.
    """
    if source is None and (write is not None or as_json):
        fail(f"{'--json' if as_json else '--write'} needs --source.", USAGE)
    if port is not None and source is not None:
        fail("--port is the port of the page, which --source does not open.", USAGE)
    with printed_errors():
        from mien.app.inference.labeler import Labeler
        from mien.app.live import views
        from mien.app.live import webcam as live
        from mien.app.settings import load_settings

        settings = load_settings(port=port, model=model, device=device, detector=detector, prior=prior)
        if source is None:
            from mien.app.service.local_page import serve_page

            serve_page(settings, browser=browser and views.has_display())
        else:
            options = {"window": window, "as_json": as_json, "reconnect": reconnect == "always"}
            live.run(Labeler.open(settings), source, write=write, **options)
