"""Command `mien mcp`: tools for language models."""

from mien.app.cli.options import DetectorName, Model, OnDevice, PriorName, printed_errors


def mcp(model: Model = None, device: OnDevice = None, detector: DetectorName = None, prior: PriorName = None) -> None:
    """Let an agent label photos and folders: a Model Context Protocol server on standard input and output."""
    with printed_errors():
        from mien.app.labeling.mcp import serve
        from mien.app.settings import load_settings

        serve(load_settings(model=model, device=device, detector=detector, prior=prior))
