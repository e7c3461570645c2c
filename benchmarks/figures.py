"""How does a benchmark say what it measured? As JSON on standard output, and in the file that was named."""

import json
from pathlib import Path
from typing import Any


def publish(figures: dict[str, Any], path: Path | None) -> None:
    """Print the figures; write them to `path` too, making its folder, where one is given."""
    text = json.dumps(figures, indent=2)
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
