"""Batches at a few fixed sizes with preallocated device buffers, for GPUs.

For every new input shape, ONNX Runtime builds the plans of all convolutions again, and keeps only those of the last
one. On an H200, 5 to 33 faces in alternating numbers took 0.14 to 0.31 s, and 0.01 to 0.04 s with CUDA graphs: captured
at start, a graph keeps its kernels. Each batch is therefore padded to the next size that has a graph; without graphs,
to the one size of plain runs. The same code runs on the CPU, where the tests compare it with an ordinary session.
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime

from mien.app.errors import ProviderUnavailable
from mien.app.inference.runtime.sessions import cudnn_messages_hidden, graph_options
from mien.data.contract import CROP_PX, Array

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # of CUDA graphs
PLAIN_SIZE: Final = 32  # of every plain run
WARM_RUNS: Final = 3  # allocate memory, capture the graph, replay it
MAX_DIFFERENCE: Final = 5e-3  # between the logits of a CUDA graph and of the plain run

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
        """Bind and warm up buffers on `device` (cuda or cpu).

        `captured` is a session of the same model that captures CUDA graphs of `sizes` and is used here only.
        Raises: ProviderUnavailable, if the GPU has no memory for a plain run.
        """
        self._device, self._input, self._output = device, input_name, output_name
        self._classes = session.get_outputs()[0].shape[1]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mien-gpu")
        with cudnn_messages_hidden():
            self._batches = self._thread.submit(self._usable, sorted(sizes), session, captured).result()
        self.captured_sizes = tuple(batch.size for batch in self._batches if batch.session is captured)
        if captured is not None:
            _log.info("CUDA graphs of batch sizes: %s", ", ".join(map(str, self.captured_sizes)) or "none")

    def _usable(
        self,
        sizes: list[int],
        session: onnxruntime.InferenceSession,
        captured: onnxruntime.InferenceSession | None,
    ) -> list[_Batch]:
        """CUDA graphs up to the largest size that works, then the plain batch if it is larger."""
        batches = list[_Batch]()
        if captured is not None:
            for size in sizes:
                try:
                    batches.append(self._replayed(size, session, captured))
                except Exception as error:  # noqa: BLE001  # ONNX Runtime's exceptions share no base class
                    _log.warning("no CUDA graphs of %d crops and more: %s", size, error)
                    break
        plain = self._batch(PLAIN_SIZE, session, None)
        try:
            plain.run(plain.host)  # last, to keep its plans
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise ProviderUnavailable(f"{PLAIN_SIZE} faces do not run on the GPU ({error})") from error
        if not batches or batches[-1].size < plain.size:
            batches.append(plain)
        return batches

    def _replayed(
        self, size: int, session: onnxruntime.InferenceSession, captured: onnxruntime.InferenceSession
    ) -> _Batch:
        """A captured CUDA graph. Raises: ArithmeticError, if new crops have other logits than in a plain run."""
        batch = self._batch(size, captured, graph_options(str(size)))
        for _ in range(WARM_RUNS):
            batch.run(batch.host)
        crops = np.random.default_rng(size).integers(0, 256, batch.host.shape, np.uint8)
        # of the same size: those of other sizes differ more in fp16
        expected = self._batch(size, session, None).run(crops)
        difference = float(np.abs(batch.run(crops) - expected).max())
        if not difference <= MAX_DIFFERENCE:  # NaN
            raise ArithmeticError(f"its logits differ by {difference:g}")
        return batch

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


def padded(crops: Array) -> Array:
    """At most PLAIN_SIZE crops, padded to that size, for a plain run that builds no new plans."""
    host = np.zeros((PLAIN_SIZE, *crops.shape[1:]), crops.dtype)
    host[: len(crops)] = crops
    return host
