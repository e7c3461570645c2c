"""Dynamic batching across threads: while one inference runs, inputs of other threads queue up and share the next.

Flow: thread with the crops of a photo, or with an image to search -> `Batcher` -> one inference for all that wait ->
the results of that thread. There is no thread of its own: the first thread that finds no inference running runs the
next one, for itself and the others. An idle batcher starts immediately. Running one inference at a time fills a GPU.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import numpy as np

from mien.data.contract import Array

Rows = TypeVar("Rows", bound=Sequence[Any] | Array)  # one item per input
_Job = tuple[Array, Future[Rows]]  # the inputs of one caller, and then their rows or the error


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
        own = Future[Rows]()
        with self._changed:
            self._jobs.append((inputs, own))
        while True:
            with self._changed:
                self._changed.wait_for(lambda: own.done() or not self._running)
                if own.done():
                    return own.result()
                self._running = True
                jobs = self._next_jobs()
            try:
                self._run(jobs)
            finally:
                with self._changed:
                    for unfinished in (rows for _, rows in jobs if not rows.done()):  # Ctrl-C ended the run.
                        unfinished.set_exception(InterruptedError("the inference was interrupted"))
                    self._running = False
                    self._changed.notify_all()

    def _next_jobs(self) -> "list[_Job[Rows]]":
        """Whole jobs, in order, up to the batch size; at least one."""
        jobs = [self._jobs.popleft()]
        items = len(jobs[0][0])
        while self._jobs and items + len(self._jobs[0][0]) <= self._max_items:
            jobs.append(self._jobs.popleft())
            items += len(jobs[-1][0])
        return jobs

    def _run(self, jobs: "list[_Job[Rows]]") -> None:
        try:
            rows = self._infer(np.concatenate([inputs for inputs, _ in jobs]) if len(jobs) > 1 else jobs[0][0])
        except Exception as error:  # noqa: BLE001  # It is raised in the thread of the caller.
            if len(jobs) == 1:
                jobs[0][1].set_exception(error)
                return
            for job in jobs:  # Only the job that caused the failure fails.
                self._run([job])
            return
        start = 0
        for inputs, own in jobs:
            own.set_result(rows[start : start + len(inputs)])  # type: ignore[arg-type]  # a slice has the same type
            start += len(inputs)
