"""Benchmark of the classifier on a GPU: gain of dynamic batching, and utilization of the chip.

    python -m benchmarks.gpu --json out/gpu.json

`batching_gain`: faces/s of 32 concurrent clients, divided by the faces/s of sequential calls.
`faces_per_s`: batches of 256 crops from host memory to calibrated probabilities in host memory, in fp16.
`fraction_of_matmul`: operations/s of those faces, divided by the operations/s of an fp16 matrix product, measured with
the same runtime. Exits with status 1 if the GPU runs no node of the model. Requires `mien[gpu]` and the onnx package,
which the training and test environments have.
"""

import itertools
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from benchmarks.results import benchmark_parser, publish
from mien.app.errors import StartupError
from mien.app.inference.classifier import CPU, Classifier, open_session
from mien.app.settings import Device, load_settings
from mien.data.contract import CROP_PX, Array
from mien.data.errors import MienError

BATCH: Final = 256
CONCURRENCY: Final = 32
MATMUL_SIZE: Final = 8192
_CHAIN: Final = 8  # products per run, to make the launch overhead negligible
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


def concurrent_faces_per_s(classify: Classify, *, concurrency: int, count: int) -> float:
    """Faces per second of `concurrency` clients, each waiting for its result before it sends the next crop."""
    singles = crops(concurrency)[:, None]
    times = -(-count // concurrency)
    with ThreadPoolExecutor(concurrency) as pool:

        def everyone(repeats: int) -> None:
            list(pool.map(lambda single: [classify(single) for _ in range(repeats)], singles))

        everyone(3)
        return times * concurrency / _seconds(lambda: everyone(times))


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def matmul_flop_per_s(device: Device, *, size: int, dtype: type[np.generic], runs: int) -> float:
    """Operations per second of square matrix products in device memory; best of `runs`.

    Raises: ProviderUnavailable, as `open_session`.
    """
    rng = np.random.default_rng(0)
    left, right = ((rng.standard_normal((size, size), np.float32) / size**0.5).astype(dtype) for _ in range(2))
    feed = {"left": left, "right": right}
    session = open_session(_chain(size, dtype), device, threads=0, warm_up=feed)
    binding = session.inference.io_binding()
    for name, value in feed.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(value, "cuda", 0))
    product = onnxruntime.OrtValue.ortvalue_from_shape_and_type((size, size), dtype, "cuda", 0)
    binding.bind_ortvalue_output("product", product)
    session.inference.run_with_iobinding(binding)
    best_s = min(_seconds(lambda: session.inference.run_with_iobinding(binding)) for _ in range(runs))
    return _CHAIN * 2 * size**3 / best_s


def _chain(size: int, dtype: type[np.generic]) -> bytes:
    """A graph of dependent products, so that none can be optimized away."""
    from onnx import helper

    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = ["left", *(f"product_{step}" for step in range(1, _CHAIN)), "product"]
    nodes = [helper.make_node("MatMul", [before, "right"], [after]) for before, after in itertools.pairwise(names)]
    given = [helper.make_tensor_value_info(name, kind, (size, size)) for name in ("left", "right")]
    graph = helper.make_graph(nodes, "chain", given, [helper.make_tensor_value_info("product", kind, (size, size))])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    return bytes(model.SerializeToString())


def flop_per_face(path: Path) -> int:
    """Multiplications and additions of a graph's matrix products and convolutions for one crop.

    Raises: ValueError, if a shape is unknown.
    """
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load(path))
    graph = model.graph
    shapes: dict[str, Sequence[int]] = {value.name: value.dims for value in graph.initializer}
    for value in (*graph.value_info, *graph.input, *graph.output):
        # the only unnamed dimension is the batch, here one face
        shapes.setdefault(value.name, [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim])
    return sum(_flop(node, shapes) for node in graph.node)


def _flop(node: Any, shapes: dict[str, Sequence[int]]) -> int:
    if node.op_type not in ("MatMul", "Gemm", "Conv"):
        return 0
    missing = [name for name in (node.input[1], node.output[0]) if not shapes.get(name)]
    if missing:
        raise ValueError(f"{node.op_type} {node.name}: unknown shape of {', '.join(missing)}")
    weight, out = shapes[node.input[1]], shapes[node.output[0]]
    transposed = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    # terms per output value: a convolution's weight is (out, in / groups, height, width), a product's (..., in, out)
    terms = int(np.prod(weight[1:])) if node.op_type == "Conv" else weight[-1 if transposed else -2]
    return 2 * int(np.prod(out)) * terms


def measure(
    classifier: Classifier, device: Device, *, batch: int, concurrency: int, matmul_size: int
) -> dict[str, Any]:
    """All metrics of a classifier opened on `device`."""
    graphs = classifier.manifest.graphs
    sequential = concurrent_faces_per_s(classifier.classify, concurrency=1, count=40 * concurrency)
    batched = concurrent_faces_per_s(classifier.classify, concurrency=concurrency, count=200 * concurrency)
    rate = batch_faces_per_s(classifier.classify, batch=batch, runs=100)
    flop = flop_per_face(classifier.folder / graphs[classifier.precision].file)  # type: ignore[index]
    half = classifier.precision == "fp16"
    matmul = matmul_flop_per_s(device, size=matmul_size, dtype=np.float16 if half else np.float32, runs=20)
    return {
        "batching_gain": round(batched / sequential, 2),
        "sequential_faces_per_s": round(sequential, 1),
        "batched_faces_per_s": round(batched, 1),
        "concurrency": concurrency,
        "faces_per_s": round(rate, 1),
        "batch": batch,
        "ms_per_batch": round(batch / rate * 1000, 3),
        "gflop_per_face": round(flop / 1e9, 4),
        "matmul_tflop_per_s": round(matmul / 1e12, 3),
        "fraction_of_matmul": round(rate * flop / matmul, 4),
        "provider": classifier.provider,
        "precision": classifier.precision,
        "model": classifier.manifest.name,
    }


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
        classifier = Classifier(load_settings(device="cuda", precision="fp16"))
        if classifier.provider == CPU:
            raise StartupError(f"device cuda: most nodes of {classifier.manifest.name} run on the CPU")
    except MienError as error:
        sys.exit(f"benchmarks.gpu: nothing was measured. {error}")
    results = measure(classifier, "cuda", batch=BATCH, concurrency=CONCURRENCY, matmul_size=MATMUL_SIZE)
    results |= {"gpu": _gpu_name(), "device": "cuda", "onnxruntime": onnxruntime.__version__}
    publish(results, given.json)


if __name__ == "__main__":
    main()
