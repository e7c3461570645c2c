"""Benchmark of the memory of `mien label`: the resident size of one run.

`python -m benchmarks.labeling_memory FOLDER --json OUT` labels a folder and writes `rss_mb_fifth` and `rss_mb_end` (the
resident size when a fifth and when all of the images were labeled), and `peak_rss_mb`, also while outputs were written.

The first fifth is ignored for the growth, because ONNX Runtime allocates memory for new batch sizes and SQLite fills
its caches.
"""

import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.background import resident_bytes
from benchmarks.results import benchmark_parser, publish
from mien.app.labeling.options import DEFAULT_OUTPUTS, LabelOptions
from mien.app.labeling.progress import Error, Reporter
from mien.app.labeling.run import label
from mien.app.settings import Settings, load_settings


class Watch(Reporter):
    """Notes the resident size of this process whenever images have been labeled."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[tuple[int, float]] = []  # images so far, megabytes

    def labeled(self, images: int, faces: int, errors: Sequence[Error]) -> None:
        super().labeled(images, faces, errors)
        self.sizes.append((self.new, resident_bytes() / 1e6))


def peak_rss_mb() -> float:
    """Peak resident size of this process so far, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def measure(folder: Path, out: Path, settings: Settings, *, outputs: list[str], workers: int) -> dict[str, float]:
    """Label a folder into a new `out` and measure the memory; see the module docstring."""
    watch = Watch()
    outcome = label(LabelOptions(inputs=[str(folder)], out=out, outputs=outputs, workers=workers), settings, watch)
    return {
        "images": outcome.new,
        "faces": sum(outcome.labels.values()),
        "images_per_s": outcome.new / outcome.seconds,
        "rss_mb_fifth": next(size for images, size in watch.sizes if images >= outcome.new / 5),
        "rss_mb_end": watch.sizes[-1][1],
        "peak_rss_mb": peak_rss_mb(),
    }


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("folder", type=Path, help="folder of photos")
    parser.add_argument("--write", default=",".join(DEFAULT_OUTPUTS), help=f"outputs ({','.join(DEFAULT_OUTPUTS)})")
    parser.add_argument("--workers", type=int, default=0, help="threads (one per core)")
    options = parser.parse_args()
    outputs, settings = options.write.split(","), load_settings()
    with tempfile.TemporaryDirectory(prefix="mien-memory-") as place:
        memory = measure(options.folder, Path(place) / "out", settings, outputs=outputs, workers=options.workers)
    publish(memory, options.json)


if __name__ == "__main__":
    main()
