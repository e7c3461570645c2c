"""Command `mien webcam`: the page with a camera, or live labels of a camera, video or stream as JSON Lines."""

import os
import sys
from typing import Annotated

import typer

from mien.app.cli.shared import USAGE, DetectorName, Model, OnDevice, PriorName, fail


def webcam(
    source: Annotated[
        str | None,
        typer.Option("--source", "-s", metavar="0|FILE|URL", help="Label a camera, video file or stream."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per frame of --source, for other programs.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the page (default: 8000, or any free port).")
    ] = None,
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
    prior: PriorName = None,
) -> None:
    """Label expressions live, on a web page with your camera.

    The page is served to this machine only, and nothing is stored.
    With --source and --json, there is no page: labels are printed, for other programs.
    """
    if (source is not None) != as_json:
        fail("--source and --json belong together: without them, the page is served.", USAGE)
    if port is not None and source is not None:
        fail("--port is the port of the page, which --source does not open.", USAGE)
    from mien.app.settings import load_settings

    settings = load_settings(port=port, model=model, device=device, detector=detector, prior=prior)
    if source is None:
        from mien.app.service.start import serve_page

        serve_page(settings, browser=browser and _has_display())
    else:
        from mien.app.inference.labeler import Labeler
        from mien.app.live import write_lines

        write_lines(Labeler.open(settings), source, sys.stdout)


def _has_display() -> bool:
    """Return whether a browser can be shown; without a display, `webbrowser` opens one in the terminal."""
    return sys.platform != "linux" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
