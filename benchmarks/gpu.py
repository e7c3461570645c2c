"""How much does a GPU give the classifier? What joining requests gains, and how near a batch comes to the chip's rate.

    python -m benchmarks.gpu --json out/gpu.json
    MIEN_DEVICE=tensorrt python -m benchmarks.gpu --json out/tensorrt.json

`batching_gain`: faces per second of 32 clients whose crops are joined, over those of one call after the other.
`faces_per_s`: batches of 256 crops from host memory to calibrated probabilities in host memory, in fp16.
`fraction_of_matmul`: the arithmetic of those faces over the rate of an fp16 matrix product, measured here by the same
runtime. It refuses to run where the GPU runs no node of the model: a figure of the CPU would be worth nothing. It needs
`mien[gpu]` and the package onnx, which the environments of training and tests have.
"""

import argparse
import asyncio
import itertools
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from app.batching import Batcher, BatchLimits
from app.classify import Classifier, create_classifier
from app.errors import StartupError
from app.providers import CPU, open_session
from app.settings import Device, load_settings
from benchmarks.figures import publish
from data.contract import CROP_PX, Array
from models.manifest import ArtefactError

BATCH: Final = 256
CONCURRENCY: Final = 32
MATMUL_SIZE: Final = 8192
_CHAIN: Final = 8  # products in one run, so that starting it costs nothing
_SHEETS: Final = 4  # different batches in turn, as a service never sees the same memory twice

Classify = Callable[[Array], Array]


def crops(count: int, seed: int = 0) -> Array:
    """Random crops, (count, 112, 112, 3) uint8: a network takes as long for noise as for faces."""
    return np.random.default_rng(seed).integers(0, 256, (count, CROP_PX, CROP_PX, 3), np.uint8)


def batch_faces_per_s(classify: Classify, *, batch: int, runs: int) -> float:
    """Faces per second of whole batches, host memory to host memory; median of `runs`."""
    sheets = [crops(batch, seed) for seed in range(_SHEETS)]
    for sheet in sheets:
        classify(sheet)
    return batch / statistics.median(_seconds(lambda run=run: classify(sheets[run % _SHEETS])) for run in range(runs))  # type: ignore[misc]


def one_by_one_faces_per_s(classify: Classify, count: int) -> float:
    """Faces per second of `count` calls with one crop each, one after the other."""
    singles = crops(_SHEETS)[:, None]
    for single in singles:
        classify(single)
    return count / _seconds(lambda: [classify(singles[index % _SHEETS]) for index in range(count)])


def joined_faces_per_s(classify: Classify, *, max_batch: int, concurrency: int, count: int) -> float:
    """Faces per second of `concurrency` clients that send one crop, wait for its answer, and send the next."""
    singles = crops(concurrency)[:, None]
    batcher = Batcher(classify, BatchLimits(max_faces=max_batch))

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


def matmul_flop_per_s(device: Device, *, size: int, dtype: type[np.generic], runs: int) -> float:
    """Arithmetic per second of square matrix products in the device's memory; best of `runs`.

    Raises: ProviderUnavailable, as `open_session`.
    """
    chance = np.random.default_rng(0)
    left, right = ((chance.standard_normal((size, size), np.float32) / size**0.5).astype(dtype) for _ in range(2))
    feed = {"left": left, "right": right}
    session = open_session(_chain(size, dtype), device, threads=0, warm_up=feed)
    binding = session.inference.io_binding()
    for name, value in feed.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value, session.device, 0))
    binding.bind_ortvalue_output(
        "product",
        onnxruntime.OrtValue.ortvalue_from_shape_and_type((size, size), dtype, session.device, 0),
    )
    session.inference.run_with_iobinding(binding)
    best_s = min(_seconds(lambda: session.inference.run_with_iobinding(binding)) for _ in range(runs))
    return _CHAIN * 2 * size**3 / best_s


def _chain(size: int, dtype: type[np.generic]) -> bytes:
    """A graph of products, each with the one before, so that none can be left out."""
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = ["left", *(f"product_{step}" for step in range(1, _CHAIN)), "product"]
    nodes = [helper.make_node("MatMul", [before, "right"], [after]) for before, after in itertools.pairwise(names)]
    given = [helper.make_tensor_value_info(name, kind, (size, size)) for name in ("left", "right")]
    graph = helper.make_graph(nodes, "chain", given, [helper.make_tensor_value_info("product", kind, (size, size))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    serialised: bytes = model.SerializeToString()
    return serialised


def flop_per_face(path: Path) -> int:
    """Multiplications and additions of a graph's matrix products and convolutions for one crop.

    Raises: ValueError, where the graph does not say a shape.
    """
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    graph = model.graph
    shapes: dict[str, Sequence[int]] = {value.name: value.dims for value in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        # the one dimension without a number is the batch, here of one face
        shapes.setdefault(value.name, [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim])
    return sum(_flop(node, shapes) for node in graph.node)


def _flop(node: Any, shapes: dict[str, Sequence[int]]) -> int:
    if node.op_type not in ("MatMul", "Gemm", "Conv"):
        return 0
    missing = [name for name in (node.input[1], node.output[0]) if not shapes.get(name)]
    if missing:
        raise ValueError(f"{node.op_type} {node.name}: the graph does not say the shape of {', '.join(missing)}")
    weight, out = shapes[node.input[1]], shapes[node.output[0]]
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    # of each output number: a convolution's weight is (out, in per group, height, width), a product's (..., in, out)
    terms = int(np.prod(weight[1:])) if node.op_type == "Conv" else weight[-1 if transposed else -2]
    return 2 * int(np.prod(out)) * terms


def measure(
    classifier: Classifier, device: Device, *, batch: int, concurrency: int, matmul_size: int
) -> dict[str, Any]:
    """All figures of a classifier that is open on `device`."""
    graphs = classifier.manifest.graphs
    singly = one_by_one_faces_per_s(classifier.classify, 40 * concurrency)
    joined = joined_faces_per_s(
        classifier.classify, max_batch=classifier.max_batch, concurrency=concurrency, count=200 * concurrency
    )
    rate = batch_faces_per_s(classifier.classify, batch=batch, runs=100)
    flop = flop_per_face(classifier.folder / graphs[classifier.precision].file)  # type: ignore[index]
    half = classifier.precision == "fp16"
    matmul = matmul_flop_per_s(device, size=matmul_size, dtype=np.float16 if half else np.float32, runs=20)
    return {
        "batching_gain": round(joined / singly, 2),
        "one_by_one_faces_per_s": round(singly, 1),
        "joined_faces_per_s": round(joined, 1),
        "concurrency": concurrency,
        "faces_per_s": round(rate, 1),
        "batch": batch,
        "ms_per_batch": round(batch / rate * 1000, 3),
        "gflop_per_face": round(flop / 1e9, 4),
        "matmul_tflop_per_s": round(matmul / 1e12, 3),
        "fraction_of_matmul": round(rate * flop / matmul, 4),
        "graph_sizes": classifier.graph_sizes,
        "provider": classifier.provider,
        "precision": classifier.precision,
        "model": classifier.manifest.name,
    }


def open_on_gpu() -> tuple[Classifier, Device]:
    """The classifier in fp16, proven to run on a GPU. Raises: StartupError and its kinds, ArtefactError."""
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
    """Measure, print, and write the same as JSON where asked; leaves with status 1 where no GPU runs the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    try:
        classifier, device = open_on_gpu()
    except (StartupError, ArtefactError) as error:
        sys.exit(f"benchmarks.gpu: nothing was measured. {error}")
    # the product runs on CUDA in either case: it is the measure, not what is measured
    figures = measure(classifier, "cuda", batch=BATCH, concurrency=CONCURRENCY, matmul_size=MATMUL_SIZE)
    figures |= {"gpu": _gpu_name(), "device": device, "onnxruntime": onnxruntime.__version__}
    publish(figures | {"python": platform.python_version()}, given.json)


if __name__ == "__main__":
    main()
