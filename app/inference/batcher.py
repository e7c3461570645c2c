"""Dynamic batching across threads: while one inference runs, crops of other threads queue up and share the next.

Flow: thread with the crops of a photo -> `Batcher` -> one inference for all that wait -> the rows of that photo. There
is no thread of its own: the first thread that finds no inference running runs the next one, for itself and the others.
An idle batcher starts immediately. Running one inference at a time fills a GPU.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mien.data.contract import Array


@dataclass(slots=True, eq=False)
class _Job:
    """The crops of one caller, and then their rows or the error."""

    crops: Array
    rows: Array | None = None
    error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.rows is not None or self.error is not None


class Batcher:
    """Batches the crops of concurrent threads; every caller gets the rows of its own crops."""

    def __init__(self, infer: Callable[[Array], Array], *, max_faces: int) -> None:
        """`infer` maps (N, 112, 112, 3) uint8 to N rows; `max_faces` is the most for one inference of several jobs."""
        self._infer, self._max_faces = infer, max_faces
        self._jobs: deque[_Job] = deque()
        self._running = False
        self._changed = threading.Condition()

    def __call__(self, crops: Array) -> Array:
        """Rows of (N, 112, 112, 3) uint8 crops. Raises: the error of `infer` for these crops."""
        job = _Job(crops)
        with self._changed:
            self._jobs.append(job)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: job.done or not self._running)
                if job.done:
                    break
                self._running = True
                jobs = self._next_jobs()
            try:
                self._run(jobs)
            finally:
                with self._changed:
                    for unfinished in (other for other in jobs if not other.done):  # after Ctrl-C in this thread
                        unfinished.error = InterruptedError("the inference was interrupted")
                    self._running = False
                    self._changed.notify_all()
        if job.rows is None:
            assert job.error is not None  # noqa: S101  # for the type checker
            raise job.error
        return job.rows

    def _next_jobs(self) -> list[_Job]:
        """Whole jobs, in order, up to the batch size; at least one."""
        jobs = [self._jobs.popleft()]
        faces = len(jobs[0].crops)
        while self._jobs and faces + len(self._jobs[0].crops) <= self._max_faces:
            jobs.append(self._jobs.popleft())
            faces += len(jobs[-1].crops)
        return jobs

    def _run(self, jobs: list[_Job]) -> None:
        try:
            rows = self._infer(np.concatenate([job.crops for job in jobs]) if len(jobs) > 1 else jobs[0].crops)
        except Exception as error:  # noqa: BLE001  # raised in the thread of the caller
            if len(jobs) == 1:
                jobs[0].error = error
                return
            for job in jobs:  # only the job that caused the failure fails
                self._run([job])
            return
        ends = np.cumsum([len(job.crops) for job in jobs])
        for job, part in zip(jobs, np.split(rows, ends[:-1]), strict=True):
            job.rows = part.copy()  # a view would keep the whole batch alive
