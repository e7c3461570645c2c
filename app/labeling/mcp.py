"""Model Context Protocol server of `mien mcp`: tools that label photos and folders for language models."""

import contextlib
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mien.app import VERSION
from mien.app.inference.labeler import Labeler
from mien.app.labeling.facts import with_limits
from mien.app.labeling.journal import open_journal
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.progress import Reporter
from mien.app.labeling.reading import read_file
from mien.app.labeling.run import label
from mien.app.labeling.summary import Outcome, summary_facts
from mien.app.settings import Settings
from mien.data.errors import MienError

INSTRUCTIONS: Final = (
    "Labels describe visible expressions, not feelings. Report `confidence`, and say so where a face is `uncertain` or "
    "has `reasons`. Do not use them for decisions about people."
)
_SUMMARY: Final = ("images", "faces", "labels", "reasons", "reviewed", "corrected", "statuses", "model", "written")


def tools(settings: Settings) -> list[Callable[..., Any]]:
    """Functions whose names, types and docstrings describe the tools."""
    settings = with_limits(settings)  # so that a photo alone is labeled as in its folder
    labeler = Labeler.open(settings)

    def label_photo(path: str) -> list[dict[str, Any]]:
        """Find the faces in a photo, and label their expressions with calibrated probabilities.

        `agreement` is the expected share of people who would choose the label; boxes are in pixels.
        """
        return [face.to_dict() for face in labeler.label(read_file(os.fsencode(path), settings.max_bytes)).faces]

    def label_folder(folder: str, out: str) -> dict[str, Any]:
        """Label the photos and videos of a folder; resumes an earlier run with the same output folder.

        Writes `labels.csv`, with one row per face, and `report.html` into the folder `out`. Returns a summary.
        """
        options = LabelOptions(inputs=[folder], out=Path(out), outputs=["csv", "report"])
        return _summary(label(options, settings, Reporter()))

    def summarize(out: str) -> dict[str, Any]:
        """Summarize an output folder of `label_folder` or `mien label`, and corrections of people."""
        with contextlib.closing(open_journal(Path(out))) as journal:
            outcome = Outcome(facts=journal.facts)
            outcome.count(journal)
        return _summary(outcome)

    return [label_photo, label_folder, summarize]


def _summary(outcome: Outcome) -> dict[str, Any]:
    facts = summary_facts(outcome)
    return {name: facts[name] for name in _SUMMARY} | {"uncertain": outcome.uncertain}


def serve(settings: Settings) -> None:
    """Serve the tools on standard input and output, until the client closes it. Raises: MienError."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
    except ModuleNotFoundError as error:
        raise MienError("mcp is not installed. Install it: pip install 'path/to/the/clone[mcp]'") from error
    server = MCPServer("mien", version=VERSION, instructions=INSTRUCTIONS, log_level="WARNING")

    def with_message(tool: Callable[..., Any]) -> Callable[..., Any]:
        """The tool, whose expected errors are told to the client; others say only that it failed."""

        @functools.wraps(tool)
        def call(**arguments: Any) -> Any:
            try:
                return tool(**arguments)
            except (MienError, OSError) as error:
                raise ToolError(str(error)) from error

        return call

    for tool in tools(settings):
        server.add_tool(with_message(tool))
    server.run()
