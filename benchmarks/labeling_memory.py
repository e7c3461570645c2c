"""Benchmark of the memory of `mien label`: the resident size of one run, sampled over time.

`python -m benchmarks.labeling_memory FOLDER --json OUT` labels a folder and writes `rss_mb_fifth` and `rss_mb_end` (the
resident size when a fifth and when all of the images were labeled), `growth_mb_per_10000` (slope of a line fitted to
all samples between the two; null for a run of a second or less), `writing_mb` (maximum while outputs were written), and
`peak_rss_mb`.

The first fifth is ignored for the growth, because ONNX Runtime allocates memory for new batch sizes and SQLite fills
its caches.
"""

import resource
import sys
import tempfile
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np

from benchmarks.background import resident_bytes
from benchmarks.results import benchmark_parser, publish
from mien.app.labeling.options import DEFAULT_OUTPUTS, LabelOptions
from mien.app.labeling.progress import Error, Reporter
from mien.app.labeling.run import label
from mien.app.settings import Settings, load_settings

_PERIOD_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident size over one run, megabytes; growth in megabytes per 10,000 images."""

    images: int
    faces: int
    images_per_s: float
    rss_mb_fifth: float
    rss_mb_end: float
    growth_mb_per_10000: float | None
    writing_mb: float
    peak_rss_mb: float


class Watch(Reporter):
    """Samples the resident size of this process at regular intervals."""

    def __init__(self) -> None:
        self.done = 0
        self._writing = threading.Event()
        self._ended = threading.Event()
        self._at, self._labeling, self._rendering = array("q"), array("q"), array("q")
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def labeled(self, images: int, faces: int, errors: Sequence[Error]) -> None:
        """Count images."""
        self.done += images

    def writing(self, output: str) -> None:
        """Attribute further samples to the outputs."""
        self._writing.set()

    def _sample(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            if self._writing.is_set():
                self._rendering.append(resident_bytes())
            elif self.done:
                self._at.append(self.done)
                self._labeling.append(resident_bytes())

    def curve(self) -> tuple[list[float], list[float], float]:
        """Images and megabytes of every sample while labeling, and the maximum megabytes while writing."""
        now = resident_bytes()
        if not self._at:  # over before the first sample
            return [float(self.done)], [now / 1e6], now / 1e6
        most = max(self._rendering, default=now)
        return [float(at) for at in self._at], [size / 1e6 for size in self._labeling], most / 1e6


def peak_rss_mb() -> float:
    """Peak resident size of this process so far, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6


def growth(at: Sequence[float], sizes_mb: Sequence[float]) -> tuple[float, float, float | None]:
    """Megabytes at a fifth and at the end, and the growth per 10,000 images between them by least squares.

    The growth is None with fewer than ten samples after the first fifth.
    """
    images, sizes = np.asarray(at), np.asarray(sizes_mb)
    late = images >= at[-1] / 5
    slope = float(np.polyfit(images[late], sizes[late], 1)[0]) * 10_000 if late.sum() >= 10 else None
    return float(sizes[late][0]), float(sizes[-1]), slope


def measure(
    folder: Path, out: Path, settings: Callable[[], Settings], *, outputs: tuple[str, ...], workers: int
) -> Memory:
    """Label a folder into a new `out` and measure the memory."""
    with Watch() as watch:
        outcome = label(
            LabelOptions(inputs=[str(folder)], out=out, outputs=list(outputs), workers=workers), settings(), watch
        )
    at, sizes, writing = watch.curve()
    fifth, end, slope = growth(at, sizes)
    return Memory(
        images=outcome.new,
        faces=sum(outcome.labels.values()),
        images_per_s=outcome.new / outcome.seconds,
        rss_mb_fifth=fifth,
        rss_mb_end=end,
        growth_mb_per_10000=slope,
        writing_mb=writing,
        peak_rss_mb=peak_rss_mb(),
    )


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("folder", type=Path, help="folder of photos")
    parser.add_argument("--write", default=",".join(DEFAULT_OUTPUTS), help=f"outputs ({','.join(DEFAULT_OUTPUTS)})")
    parser.add_argument("--workers", type=int, default=0, help="threads (one per core)")
    options = parser.parse_args()
    outputs = tuple(options.write.split(","))
    with tempfile.TemporaryDirectory(prefix="mien-memory-") as place:
        memory = measure(options.folder, Path(place) / "out", load_settings, outputs=outputs, workers=options.workers)
    publish(asdict(memory), options.json)


if __name__ == "__main__":
    main()
