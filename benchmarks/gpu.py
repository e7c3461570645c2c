"""Benchmark of the classifier on a GPU: faces per second by the size of a batch.

    python -m benchmarks.gpu --json out/gpu.json

For fp16 and fp32: batches from host memory to calibrated probabilities in host memory, the median of 100; and the
largest difference of a probability from fp32 on the CPU. Exits with status 1 if the GPU runs no node of the model.
Requires the packages of requirements/gpu.txt.
"""

import statistics
import sys
import time
from typing import Any, Final

import numpy as np
import onnxruntime

from benchmarks.harness import benchmark_parser, publish
from mien.app.errors import StartupError
from mien.app.inference.classifier import CPU, Classifier
from mien.app.settings import load_settings
from mien.data.contract import CROP_PX, Array
from mien.data.errors import MienError

BATCHES: Final = (1, 8, 32, 128, 256)
_DIFFERENT: Final = 4  # A service does not reuse memory either.


def crops(count: int, seed: int = 0) -> Array:
    """Random crops, (count, 112, 112, 3) uint8; the network takes the same time for noise and faces."""
    return np.random.default_rng(seed).integers(0, 256, (count, CROP_PX, CROP_PX, 3), np.uint8)


def faces_per_s(classifier: Classifier, batch: int, *, runs: int = 100) -> float:
    """Faces per second in batches of one size."""
    batches, times_s = [crops(batch, seed) for seed in range(_DIFFERENT)], []
    for run in range(_DIFFERENT + runs):
        start = time.perf_counter()
        classifier.classify(batches[run % _DIFFERENT])
        times_s.append(time.perf_counter() - start)
    return round(batch / statistics.median(times_s[_DIFFERENT:]), 1)


def main() -> None:
    """Run the benchmark; exits with status 1 if no GPU runs the model."""
    options = benchmark_parser(__doc__).parse_args()
    expected = Classifier(load_settings(device="cpu", precision="fp32")).classify(crops(64))
    results: dict[str, Any] = {"onnxruntime": onnxruntime.__version__}
    try:
        for precision in ("fp16", "fp32"):
            classifier = Classifier(load_settings(device="cuda", precision=precision))
            if classifier.provider == CPU:
                raise StartupError(f"device cuda: most nodes of {classifier.manifest.name} run on the CPU")
            results[precision] = {
                "faces_per_s": {batch: faces_per_s(classifier, batch) for batch in BATCHES},
                "largest_difference": float(f"{np.abs(classifier.classify(crops(64)) - expected).max():.2g}"),
                "provider": classifier.provider,
                "model": classifier.manifest.name,
            }
    except MienError as error:
        sys.exit(f"benchmarks.gpu: nothing was measured. {error}")
    publish(results, options.json)


if __name__ == "__main__":
    main()
