"""Table of the released artifacts for docs/models.md, from their manifests, with optional timings.

python -m tools.model_zoo [--milliseconds] > docs/models.md
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mien.data.contract import CROP_PX
from mien.models.manifest import ARTIFACTS_DIR, Manifest, classifier_dirs, load_artifact
from mien.training.evaluate import open_graph, run_graph
from mien.training.wording import interval, markdown_table

_HEAD = """# Released models

Written by `python -m tools.model_zoo`. Accuracy in %, with 95 % intervals, on the split shown. Milliseconds (with
`--milliseconds`): one face, fp32, {threads} CPU threads, shortest of 50 runs. The cards have all metrics.

"""
_COLUMNS = ("model", "recipe", "training data", "accuracy", "mean class accuracy", "on", "parameters", "ms")


def row(folder: Path, *, threads: int | None) -> list[str]:
    """One row of the table for a verified artifact, timed if `threads` is given. Raises: ArtifactError."""
    manifest = load_artifact(folder)
    recipe: Any = manifest.recipe
    first = manifest.metrics[0] if manifest.metrics else None
    return [
        f"[{manifest.name}](../models/artifacts/{manifest.name}/card.md)",
        ", ".join(f"`{member['name']}`" for member in recipe.get("members", [recipe]) if "name" in member),
        ", ".join(manifest.learned_from) or "not recorded",
        interval(first.accuracy, 1) if first else "not measured",
        interval(first.mean_class_accuracy, 1) if first else "not measured",
        f"{first.data} {first.split}, {first.faces:,} faces, {first.prior}" if first else "",
        f"{manifest.parameters / 1e6:.1f} M",
        "not measured" if threads is None else f"{milliseconds(folder, manifest, threads=threads):.2f}",
    ]


def milliseconds(folder: Path, manifest: Manifest, *, threads: int) -> float:
    """Shortest time of one face in the fp32 graph; the minimum is least affected by other processes."""
    session = open_graph(folder / manifest.graph("fp32").file, threads=threads)
    face = np.zeros((1, CROP_PX, CROP_PX, 3), np.uint8)
    spent = []
    for _ in range(50):
        started = time.perf_counter()
        run_graph(session, face)
        spent.append(time.perf_counter() - started)
    return 1000 * min(spent)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.model_zoo", description="Table of the released artifacts.")
    parser.add_argument("--artifacts", type=Path, default=ARTIFACTS_DIR)
    parser.add_argument("--milliseconds", action="store_true", help="time each model; needs an idle machine")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    threads = options.threads if options.milliseconds else None
    rows = [row(folder, threads=threads) for folder in classifier_dirs(options.artifacts)]
    print(_HEAD.format(threads=options.threads) + markdown_table(_COLUMNS, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
