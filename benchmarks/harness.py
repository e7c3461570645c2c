"""What benchmarks share: arguments, results as JSON on standard output and in a file, and a bare loop of the stages."""

import argparse
import json
import os
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from mien.app.inference.labeler import Labeler

SAMPLES: Final = Path(__file__).resolve().parent.parent / "samples" / "photos"


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


def bare_s(pipeline: Labeler, paths: Sequence[Path], workers: int) -> float:
    """Seconds that files take to be read, decoded, detected, aligned and classified, one by one in each thread."""
    with ThreadPoolExecutor(workers) as pool:
        began = time.perf_counter()
        for _ in pool.map(lambda path: pipeline.label(path.read_bytes()), paths):
            pass
        return time.perf_counter() - began
