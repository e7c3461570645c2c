"""How does a GPU run batches of any size without surprises? At a few fixed sizes, warmed at start, with bound memory.

A GPU plans kernels and memory for every new shape it meets, which costs the first caller tens of milliseconds; copying
in and out through fresh buffers costs every caller. So a batch is padded to the next of a few sizes, whose device
buffers are bound to the session once. The same code runs on the CPU, where the tests hold it to the plain session.
"""

import threading
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnxruntime

from data.contract import CROP_PX, LABELS, Array

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Buffers of one batch size, bound to the session; the host's input is (size, 112, 112, 3) uint8."""

    size: int
    host: Array
    crops: Any
    logits: Any
    binding: Any


class BucketRunner:
    """Runs a classifier graph at fixed batch sizes; safe to call from several threads, which take turns."""

    def __init__(
        self,
        session: onnxruntime.InferenceSession,
        *,
        device: str,
        input_name: str,
        output_name: str,
        sizes: tuple[int, ...] = SIZES,
    ) -> None:
        """Bind and warm a bucket per size on `device` (cuda or cpu)."""
        self._session = session
        self._lock = threading.Lock()
        self._buckets = tuple(self._bucket(size, device, input_name, output_name) for size in sorted(sizes))
        for bucket in self._buckets:
            session.run_with_iobinding(bucket.binding)

    @property
    def max_batch(self) -> int:
        """The largest size; larger batches run in parts."""
        return self._buckets[-1].size

    def _bucket(self, size: int, device: str, input_name: str, output_name: str) -> _Bucket:
        host = np.zeros((size, CROP_PX, CROP_PX, 3), np.uint8)
        crops = onnxruntime.OrtValue.ortvalue_from_numpy(host, device, 0)
        logits = onnxruntime.OrtValue.ortvalue_from_shape_and_type((size, len(LABELS)), np.float32, device, 0)
        binding = self._session.io_binding()
        binding.bind_ortvalue_input(input_name, crops)
        binding.bind_ortvalue_output(output_name, logits)
        return _Bucket(size, host, crops, logits, binding)

    def run(self, crops: Array) -> Array:
        """Logits (N, 7) float32 of (N, 112, 112, 3) uint8 crops, N of any size."""
        step = self.max_batch
        with self._lock:
            parts = [self._part(crops[start : start + step]) for start in range(0, len(crops), step)]
        return np.concatenate(parts) if parts else np.empty((0, len(LABELS)), np.float32)

    def _part(self, crops: Array) -> Array:
        count = len(crops)
        bucket = next(bucket for bucket in self._buckets if bucket.size >= count)
        if count == bucket.size:
            bucket.crops.update_inplace(np.ascontiguousarray(crops))
        else:
            bucket.host[:count] = crops  # what stands behind them is an earlier batch's, and its rows are cut off
            bucket.crops.update_inplace(bucket.host)
        self._session.run_with_iobinding(bucket.binding)
        logits: Array = bucket.logits.numpy()[:count].copy()
        return logits
