"""The command `mien serve`: the HTTP service on a port."""

from typing import Annotated

import typer

from app.cli.options import DetectorName, Model, OnDevice, PriorName, printed_errors


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; 127.0.0.1 when not given.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; 8000 when not given.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that share the port.")] = None,
    model: Model = None,
    device: OnDevice = None,
    detector: DetectorName = None,
    prior: PriorName = None,
) -> None:
    """Answer uploads over HTTP: POST /v1/expressions; guide at /docs."""
    with printed_errors():
        from app.service import server
        from app.settings import load_settings

        settings = load_settings(
            host=host, port=port, workers=workers, model=model, device=device, detector=detector, prior=prior
        )
        server.run(settings)
