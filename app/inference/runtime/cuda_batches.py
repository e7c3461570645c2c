"""Batches at a few fixed sizes with preallocated device buffers, for GPUs.

For every new input shape, CUDA selects kernels and allocates memory, which takes tens of milliseconds; new buffers cost
time in every call. Each batch is therefore padded to the next fixed size, whose buffers are bound to the session at
start. The same code runs on the CPU, where the tests compare it with an ordinary session.
"""

import logging
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime

from mien.app.inference.runtime.sessions import graph_options
from mien.data.contract import CROP_PX, Array

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WARM_RUNS: Final = 3  # allocate memory, capture the graph, replay it
TIMED_RUNS: Final = 10
# A CUDA graph is used if it is faster beyond noise and its logits agree with those of the plain run.
MIN_GAIN: Final = 1.05
MAX_DIFFERENCE: Final = 5e-3  # of logits

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Buffers of one batch size, bound to a session; the input on the host is (size, 112, 112, 3) uint8."""

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
            self.host[:count] = crops  # the rest holds crops of an earlier batch; their rows are dropped
            self.crops.update_inplace(self.host)
        self.session.run_with_iobinding(self.binding, self.options)
        logits: Array = self.logits.numpy()[:count].copy()
        return logits


class FixedBatches:
    """Runs a classifier graph at fixed batch sizes, for one caller at a time (`Batcher`).

    A CUDA graph launches the hundreds of small kernels of a batch in one call. This is faster if launching them takes
    longer than running them, which is measured for each size at start.

    One thread captures and replays them: ONNX Runtime keeps CUDA graphs per thread. Any other thread would capture its
    own during its first batches, and until a capture ends, other sessions fail to allocate memory.
    """

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
        """Bind and warm up buffers for each size on `device` (cuda or cpu).

        `captured` is a session of the same model that captures CUDA graphs and is used here only.
        """
        self._device, self._input, self._output = device, input_name, output_name
        self._classes = session.get_outputs()[0].shape[1]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mien-gpu")
        self._batches = self._thread.submit(self._usable, sorted(sizes), session, captured).result()
        self.captured_sizes = tuple(batch.size for batch in self._batches if batch.session is captured)
        if captured is not None:
            _log.info("CUDA graphs are faster for batch sizes: %s", ", ".join(map(str, self.captured_sizes)) or "none")

    def _usable(
        self,
        sizes: list[int],
        session: onnxruntime.InferenceSession,
        captured: onnxruntime.InferenceSession | None,
    ) -> tuple[_Batch, ...]:
        """Batches of these sizes, up to the largest that the GPU has memory for."""
        batches = list[_Batch]()
        for size in sizes:
            try:
                batches.append(self._chosen(size, session, captured))
            except Exception as error:  # ONNX Runtime's exceptions share no base class
                if not batches:
                    raise
                _log.warning("GPU batches of at most %d faces: %d do not run (%s)", batches[-1].size, size, error)
                break
        return tuple(batches)

    def _chosen(
        self, size: int, session: onnxruntime.InferenceSession, captured: onnxruntime.InferenceSession | None
    ) -> _Batch:
        plain = self._batch(size, session, None)
        plain.run(plain.host)
        if captured is None:
            return plain
        try:
            replayed = self._batch(size, captured, graph_options(str(size)))
            return replayed if _is_better(replayed, plain) else plain
        except Exception as error:  # noqa: BLE001  # ONNX Runtime's exceptions share no base class
            _log.info("CUDA graph for %d crops: not captured (%s)", size, error)
            return plain

    def _batch(
        self, size: int, session: onnxruntime.InferenceSession, options: onnxruntime.RunOptions | None
    ) -> _Batch:
        host = np.zeros((size, CROP_PX, CROP_PX, 3), np.uint8)
        crops = onnxruntime.OrtValue.ortvalue_from_numpy(host, self._device, 0)
        shape = (size, self._classes)
        logits = onnxruntime.OrtValue.ortvalue_from_shape_and_type(shape, np.float32, self._device, 0)
        binding = session.io_binding()
        binding.bind_ortvalue_input(self._input, crops)
        binding.bind_ortvalue_output(self._output, logits)
        return _Batch(size, host, crops, logits, binding, session, options)

    @property
    def max_batch(self) -> int:
        """The largest size; larger batches are split."""
        return self._batches[-1].size

    def run(self, crops: Array) -> Array:
        """Logits (N, 7) float32 of (N, 112, 112, 3) uint8 crops, for any N."""
        step = self.max_batch
        parts = [self._part(crops[start : start + step]) for start in range(0, len(crops), step)]
        return np.concatenate(parts) if parts else np.empty((0, self._classes), np.float32)

    def _part(self, crops: Array) -> Array:
        batch = next(batch for batch in self._batches if batch.size >= len(crops))
        return self._thread.submit(batch.run, crops).result()


def _is_better(replayed: _Batch, plain: _Batch) -> bool:
    """Whether the CUDA graph gives the logits of the plain run on new crops, in less time."""
    for _ in range(WARM_RUNS):
        replayed.run(replayed.host)
    crops = np.random.default_rng(replayed.size).integers(0, 256, replayed.host.shape, np.uint8)
    difference = float(np.abs(replayed.run(crops) - plain.run(crops)).max())
    if not difference <= MAX_DIFFERENCE:
        _log.warning("CUDA graph for %d crops: not used, its logits differ by %g", replayed.size, difference)
        return False
    return _seconds(plain, crops) >= MIN_GAIN * _seconds(replayed, crops)


def _seconds(batch: _Batch, crops: Array) -> float:
    times = []
    for _ in range(TIMED_RUNS):
        start = time.perf_counter()
        batch.run(crops)
        times.append(time.perf_counter() - start)
    return statistics.median(times)
