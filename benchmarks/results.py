"""Output of benchmark results as JSON, to standard output and to a file."""

import json
from pathlib import Path
from typing import Any


def publish(results: dict[str, Any], path: Path | None) -> None:
    """Print the results; with a path, also write them there, creating its folder."""
    text = json.dumps(results, indent=2)
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
