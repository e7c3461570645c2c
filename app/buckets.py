"""How does a GPU run batches of any size without surprises? At a few fixed sizes, warmed at start, with bound memory.

A GPU plans kernels and memory for every new shape it meets, which costs the first caller tens of milliseconds; copying
in and out through fresh buffers costs every caller. So a batch is padded to the next of a few sizes, whose device
buffers are bound to the session once. The same code runs on the CPU, where the tests hold it to the plain session.
"""

import logging
import statistics
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime

from app.providers import GRAPH_ID
from data.contract import CROP_PX, LABELS, Array

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WARM_RUNS: Final = 3  # one to take memory, one to capture a graph, one to replay it
TIMED_RUNS: Final = 10
# A graph is taken for a gain that is more than chance, and only with the answers of the plain run.
LEAST_GAIN: Final = 1.05
MOST_DIFFERENCE: Final = 5e-3  # of logits

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Buffers of one batch size, bound to a session; the host's input is (size, 112, 112, 3) uint8."""

    size: int
    host: Array
    crops: Any
    logits: Any
    binding: Any
    session: onnxruntime.InferenceSession
    options: onnxruntime.RunOptions | None

    def run(self, crops: Array) -> Array:
        """Logits (N, 7) float32 of N crops, N at most `size`."""
        count = len(crops)
        if count == self.size:
            self.crops.update_inplace(np.ascontiguousarray(crops))
        else:
            self.host[:count] = crops  # what stands behind them is an earlier batch's, and its rows are cut off
            self.crops.update_inplace(self.host)
        self.session.run_with_iobinding(self.binding, self.options)
        logits: Array = self.logits.numpy()[:count].copy()
        return logits


class BucketRunner:
    """Runs a classifier graph at fixed batch sizes; safe to call from several threads, which take turns.

    A CUDA graph replays the hundreds of small kernels of a batch by one call, which pays where launching them takes
    longer than running them. Whether it does is measured for each size at the start, on the very machine.
    """

    captured_sizes: tuple[int, ...]

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        *,
        device: str,
        input_name: str,
        output_name: str,
        sizes: tuple[int, ...] = SIZES,
        captured: onnxruntime.InferenceSession | None = None,
    ) -> None:
        """Bind and warm a bucket per size on `device` (cuda or cpu).

        `captured` is the same model opened to capture CUDA graphs; nobody else may run it.
        """
        self._device, self._input, self._output = device, input_name, output_name
        self._lock = threading.Lock()
        self._buckets = tuple(self._chosen(size, session, captured) for size in sorted(sizes))
        self.captured_sizes = tuple(bucket.size for bucket in self._buckets if bucket.session is captured)
        if captured is not None:
            _log.info("CUDA graphs win for batches of: %s", ", ".join(map(str, self.captured_sizes)) or "no size")

    def _chosen(
        self, size: int, session: onnxruntime.InferenceSession, captured: onnxruntime.InferenceSession | None
    ) -> _Bucket:
        plain = self._bucket(size, session, None)
        plain.run(plain.host)
        if captured is None:
            return plain
        try:
            replayed = self._bucket(size, captured, _graph(size))
            return replayed if _wins(replayed, plain) else plain
        except Exception as error:  # noqa: BLE001  # the runtime's own classes; the plain run is there
            _log.info("CUDA graph of %d crops: not captured (%s)", size, error)
            return plain

    def _bucket(
        self, size: int, session: onnxruntime.InferenceSession, options: onnxruntime.RunOptions | None
    ) -> _Bucket:
        host = np.zeros((size, CROP_PX, CROP_PX, 3), np.uint8)
        crops = onnxruntime.OrtValue.ortvalue_from_numpy(host, self._device, 0)
        shape = (size, len(LABELS))
        logits = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, self._device, 0)
        binding = session.io_binding()
        binding.bind_ortvalue_input(self._input, crops)
        binding.bind_ortvalue_output(self._output, logits)
        return _Bucket(size, host, crops, logits, binding, session, options)

    @property
    def max_batch(self) -> int:
        """The largest size; larger batches run in parts."""
        return self._buckets[-1].size

    def run(self, crops: Array) -> Array:
        """Logits (N, 7) float32 of (N, 112, 112, 3) uint8 crops, N of any size."""
        step = self.max_batch
        with self._lock:
            parts = [self._part(crops[start : start + step]) for start in range(0, len(crops), step)]
        return np.concatenate(parts) if parts else np.empty((0, len(LABELS)), np.float32)

    def _part(self, crops: Array) -> Array:
        return next(bucket for bucket in self._buckets if bucket.size >= len(crops)).run(crops)


def _graph(size: int) -> onnxruntime.RunOptions:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(GRAPH_ID, str(size))
    return options


def _wins(replayed: _Bucket, plain: _Bucket) -> bool:
    """Whether the graph gives the plain run's answers to crops that it was not captured with, and sooner."""
    for _ in range(WARM_RUNS):
        replayed.run(replayed.host)
    crops = np.random.default_rng(replayed.size).integers(0, 256, replayed.host.shape, np.uint8)
    difference = float(np.abs(replayed.run(crops) - plain.run(crops)).max())
    if not difference <= MOST_DIFFERENCE:
        _log.warning("CUDA graph of %d crops: answers differ by %g, so it is not used", replayed.size, difference)
        return False
    return _seconds(plain, crops) >= LEAST_GAIN * _seconds(replayed, crops)


def _seconds(bucket: _Bucket, crops: Array) -> float:
    times = []
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        bucket.run(crops)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
