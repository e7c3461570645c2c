"""Dynamic batching of face crops across requests: one queue, one thread.

Flow: request -> crops -> `Batcher` -> `Classifier` -> rows of that request. While one inference runs, faces of other
requests queue up, and the next inference takes them all; an idle batcher starts immediately. Running one inference at a
time fills a GPU. On a CPU, the service classifies the faces of each photo in its own thread instead.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from mien.app.errors import QueueFull, ShuttingDown
from mien.data.contract import LABELS, Array

_log = logging.getLogger(__name__)
# (N, 112, 112, 3) uint8 -> (N, 7) float32
Classify = Callable[[Array], Array]


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    crops: Array
    result: "Future[Array]"


class Batcher:
    """Batches the crops of concurrent callers; every caller gets the rows of its own crops.

    Thread-safe, and usable from an event loop. `close` lets accepted work finish.
    """

    def __init__(
        self,
        classify: Classify,
        *,
        max_faces: int = 64,
        max_wait_s: float = 0.002,
        max_queue: int = 1024,
        on_batch: Callable[[int], None] | None = None,
    ) -> None:
        """Start the thread.

        Args:
            max_faces: of one inference; max_wait_s: for a batch to fill, in seconds; max_queue: faces in the queue.
            on_batch: called after each inference with its number of faces.
        """
        self._classify, self._on_batch = classify, on_batch
        self._max_faces, self._max_wait_s, self._max_queue = max_faces, max_wait_s, max_queue
        self._jobs: deque[_Job] = deque()
        self._waiting = 0
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="mien-batch", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Faces in the queue."""
        return self._waiting

    async def classify(self, crops: Array) -> Array:
        """Await the result of `submit`; crops of a caller that is canceled while queued are not classified."""
        return await asyncio.wrap_future(self.submit(crops))

    def submit(self, crops: Array) -> "Future[Array]":
        """Queue (N, 112, 112, 3) uint8 crops; the future resolves to (N, 7) float32 probabilities.

        Raises: QueueFull; ShuttingDown, after `close`.
        """
        job = _Job(crops, Future())
        if len(crops) == 0:
            job.result.set_result(np.empty((0, len(LABELS)), np.float32))
            return job.result
        with self._changed:
            if self._closing:
                raise ShuttingDown("the service is stopping and accepts no more faces")
            # An empty queue accepts any number of faces: a photo with more than `max_queue` could not be served
            # otherwise.
            if self._waiting and self._waiting + len(crops) > self._max_queue:
                raise QueueFull(f"{self._waiting} of at most {self._max_queue} faces are queued: try again in a moment")
            self._jobs.append(job)
            self._waiting += len(crops)
            self._changed.notify()
        return job.result

    def close(self) -> None:
        """Stop accepting work, finish accepted work, and end the thread. Safe to call twice."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        busy = False
        while True:
            with self._changed:
                if not self._jobs:
                    busy = False
                    self._changed.wait_for(lambda: self._jobs or self._closing)
                if not self._jobs:
                    return
                if busy:
                    self._wait_to_fill()
                jobs = self._take()
            self._run(jobs)
            busy = True

    def _wait_to_fill(self) -> None:
        """Under load, wait a moment for the batch to fill; never when idle or closing."""
        deadline = time.monotonic() + self._max_wait_s
        while self._waiting < self._max_faces and not self._closing:
            left = deadline - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                return

    def _take(self) -> list[_Job]:
        """Take whole requests, in order, up to the batch size; at least one."""
        taken: list[_Job] = []
        faces = 0
        while self._jobs and (not taken or faces + len(self._jobs[0].crops) <= self._max_faces):
            job = self._jobs.popleft()
            self._waiting -= len(job.crops)
            if job.result.set_running_or_notify_cancel():
                taken.append(job)
                faces += len(job.crops)
        return taken

    def _run(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        try:
            rows = self._classify(np.concatenate([job.crops for job in jobs]) if len(jobs) > 1 else jobs[0].crops)
        except Exception as error:  # noqa: BLE001  # passed to the callers; the thread must keep running
            self._run_separately(jobs, error)
            return
        start = 0
        for job in jobs:
            end = start + len(job.crops)
            job.result.set_result(rows[start:end].copy())  # a view would keep the whole batch alive
            start = end
        try:
            if self._on_batch is not None:
                self._on_batch(len(rows))
        except Exception:  # noqa: BLE001  # a failing metric must not end the thread that all callers wait for
            _log.exception("the callback for a batch of %d faces failed", len(rows))

    def _run_separately(self, jobs: list[_Job], error: Exception) -> None:
        """After a failed batch, run each request alone, so that only the request that caused it fails."""
        if len(jobs) == 1:
            jobs[0].result.set_exception(error)
            return
        for job in jobs:
            self._run([job])
