"""Benchmark of the classifier on a GPU: gain of dynamic batching, and faces per second.

    python -m benchmarks.gpu --json out/gpu.json
    MIEN_DEVICE=tensorrt python -m benchmarks.gpu --json out/tensorrt.json

`batching_gain`: faces/s of 32 concurrent clients, divided by the faces/s of sequential calls.
`faces_per_s`: batches of 256 crops from host memory to calibrated probabilities in host memory, in fp16.
Exits with status 1 if the GPU runs no node of the model. Requires `mien[gpu]`.
"""

import asyncio
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnxruntime

from benchmarks.results import benchmark_parser, publish
from mien.app.errors import StartupError
from mien.app.inference.batcher import Batcher
from mien.app.inference.classifier import Classifier, create_classifier
from mien.app.inference.runtime.sessions import CPU
from mien.app.settings import Device, load_settings
from mien.data.contract import CROP_PX, Array
from mien.data.errors import MienError

BATCH: Final = 256
CONCURRENCY: Final = 32
_BATCHES: Final = 4  # number of different batches, as a service does not reuse memory either

Classify = Callable[[Array], Array]


def crops(count: int, seed: int = 0) -> Array:
    """Random crops, (count, 112, 112, 3) uint8; the network takes the same time for noise and faces."""
    return np.random.default_rng(seed).integers(0, 256, (count, CROP_PX, CROP_PX, 3), np.uint8)


def batch_faces_per_s(classify: Classify, *, batch: int, runs: int) -> float:
    """Faces per second in batches, from host memory to host memory; median of `runs`."""
    batches = [crops(batch, seed) for seed in range(_BATCHES)]
    for faces in batches:  # warm-up
        classify(faces)
    return batch / statistics.median(_seconds(lambda run=run: classify(batches[run % _BATCHES])) for run in range(runs))  # type: ignore[misc]


def sequential_faces_per_s(classify: Classify, count: int) -> float:
    """Faces per second of `count` sequential calls with one crop each."""
    singles = crops(_BATCHES)[:, None]
    for single in singles:
        classify(single)
    return count / _seconds(lambda: [classify(singles[index % _BATCHES]) for index in range(count)])


def batched_faces_per_s(classify: Classify, *, max_batch: int, concurrency: int, count: int) -> float:
    """Faces per second of `concurrency` clients, each waiting for its result before it sends the next crop."""
    singles = crops(concurrency)[:, None]
    batcher = Batcher(classify, max_faces=max_batch)

    async def client(single: Array, times: int) -> None:
        for _ in range(times):
            await batcher.classify(single)

    async def everyone(times: int) -> None:
        await asyncio.gather(*(client(single, times) for single in singles))

    times = -(-count // concurrency)
    try:
        asyncio.run(everyone(3))
        return times * concurrency / _seconds(lambda: asyncio.run(everyone(times)))
    finally:
        batcher.close()


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(classifier: Classifier, *, batch: int, concurrency: int) -> dict[str, Any]:
    """All metrics of an open classifier."""
    sequential = sequential_faces_per_s(classifier.classify, 40 * concurrency)
    batched = batched_faces_per_s(
        classifier.classify, max_batch=classifier.max_batch, concurrency=concurrency, count=200 * concurrency
    )
    rate = batch_faces_per_s(classifier.classify, batch=batch, runs=100)
    return {
        "batching_gain": round(batched / sequential, 2),
        "sequential_faces_per_s": round(sequential, 1),
        "batched_faces_per_s": round(batched, 1),
        "concurrency": concurrency,
        "faces_per_s": round(rate, 1),
        "batch": batch,
        "ms_per_batch": round(batch / rate * 1000, 3),
        "graph_sizes": classifier.graph_sizes,
        "provider": classifier.provider,
        "precision": classifier.precision,
        "model": classifier.manifest.name,
    }


def open_on_gpu() -> tuple[Classifier, Device]:
    """The classifier in fp16 on a GPU. Raises: StartupError and its subclasses, ArtifactError."""
    device: Device = "tensorrt" if load_settings().device == "tensorrt" else "cuda"
    classifier = create_classifier(load_settings(device=device, precision="fp16"))
    if classifier.provider == CPU:
        raise StartupError(f"device {device}: most nodes of {classifier.manifest.name} run on the CPU")
    return classifier, device


def _gpu_name() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    command = [program, "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout.strip() or "unknown"


def main() -> None:
    """Run the benchmark; exits with status 1 if no GPU runs the model."""
    parser = benchmark_parser(__doc__)
    given = parser.parse_args()
    try:
        classifier, device = open_on_gpu()
    except MienError as error:
        sys.exit(f"benchmarks.gpu: nothing was measured. {error}")
    results = measure(classifier, batch=BATCH, concurrency=CONCURRENCY)
    results |= {"gpu": _gpu_name(), "device": device, "onnxruntime": onnxruntime.__version__}
    publish(results | {"python": platform.python_version()}, given.json)


if __name__ == "__main__":
    main()
