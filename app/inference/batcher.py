"""Dynamic batching across threads: while one inference runs, inputs of other threads queue up and share the next.

Flow: thread with the crops of a photo, or with an image to search -> `Batcher` -> one inference for all that wait ->
the results of that thread. There is no thread of its own: the first thread that finds no inference running runs the
next one, for itself and the others. An idle batcher starts immediately. Running one inference at a time fills a GPU.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from mien.data.contract import Array

Rows = TypeVar("Rows", bound=Sequence[Any] | Array)  # one item per input


@dataclass(slots=True, eq=False)
class _Job(Generic[Rows]):
    """The inputs of one caller, and then their rows or the error."""

    inputs: Array
    rows: Rows | None = None
    error: Exception | None = None

    @property
    def done(self) -> bool:
        return self.rows is not None or self.error is not None


class Batcher(Generic[Rows]):
    """Batches the inputs of concurrent threads; every caller gets the rows of its own inputs."""

    def __init__(self, infer: Callable[[Array], Rows], *, max_items: int) -> None:
        """`infer` maps (N, ...) to N rows; `max_items` is the most for one inference of several jobs."""
        self._infer, self._max_items = infer, max_items
        self._jobs: deque[_Job[Rows]] = deque()
        self._running = False
        self._changed = threading.Condition()

    def __call__(self, inputs: Array) -> Rows:
        """Rows of (N, ...) inputs. Raises: the error of `infer` for these inputs."""
        job = _Job[Rows](inputs)
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
                    for unfinished in (other for other in jobs if not other.done):  # Ctrl-C ended the run.
                        unfinished.error = InterruptedError("the inference was interrupted")
                    self._running = False
                    self._changed.notify_all()
        if job.rows is None:
            assert job.error is not None  # noqa: S101  # for the type checker
            raise job.error
        return job.rows

    def _next_jobs(self) -> list[_Job[Rows]]:
        """Whole jobs, in order, up to the batch size; at least one."""
        jobs = [self._jobs.popleft()]
        items = len(jobs[0].inputs)
        while self._jobs and items + len(self._jobs[0].inputs) <= self._max_items:
            jobs.append(self._jobs.popleft())
            items += len(jobs[-1].inputs)
        return jobs

    def _run(self, jobs: list[_Job[Rows]]) -> None:
        try:
            rows = self._infer(np.concatenate([job.inputs for job in jobs]) if len(jobs) > 1 else jobs[0].inputs)
        except Exception as error:  # noqa: BLE001  # It is raised in the thread of the caller.
            if len(jobs) == 1:
                jobs[0].error = error
                return
            for job in jobs:  # Only the job that caused the failure fails.
                self._run([job])
            return
        start = 0
        for job in jobs:
            job.rows = rows[start : start + len(job.inputs)]  # type: ignore[assignment]  # a slice has the same type
            start += len(job.inputs)
