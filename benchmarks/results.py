"""Arguments of benchmarks, and their results as JSON, on standard output and in a file."""

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any


def benchmark_parser(doc: str | None) -> argparse.ArgumentParser:
    """Parser with the docstring of a benchmark as its help, and `--json`, the file for the results."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the results")
    return parser


def publish(results: dict[str, Any], path: Path | None) -> None:
    """Print the results, with facts about the machine; with a path, also write them there, creating its folder."""
    load = [round(value, 2) for value in getattr(os, "getloadavg", tuple)()]  # not on Windows
    results = results | {"cores": os.cpu_count(), "load_average_after": load, "python": platform.python_version()}
    text = json.dumps(results, indent=2)
    print(text)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
