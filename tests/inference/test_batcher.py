"""Batching of concurrent threads: correct results, no waiting when idle, and nothing lost."""

import random
import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from mien.app.inference.batcher import Batcher
from mien.data.contract import CROP_PX, LABELS, Array
from tests.support import eventually

TIMEOUT_S = 20


class Marked:
    """Fake classifier: each row repeats the first pixel of its crop; can be blocked, and fails on 255."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Event()

    def __call__(self, crops: Array) -> Array:
        self.started.set()
        assert self.gate.wait(TIMEOUT_S)
        self.batches.append(len(crops))
        if (crops[:, 0, 0, 0] == 255).any():
            raise RuntimeError("a poisoned crop")
        return np.repeat(crops[:, 0, 0, :1].astype(np.float32), len(LABELS), axis=1)


def marks(*values: int) -> Array:
    crops = np.zeros((len(values), CROP_PX, CROP_PX, 3), np.uint8)
    crops[:, 0, 0, 0] = values
    return crops


class Callers:
    """Threads that call a batcher in a known order, the first of which holds the network until `release`."""

    def __init__(self) -> None:
        self.network = Marked()
        self.batcher = Batcher(self.network, max_items=8)
        self._pool = ThreadPoolExecutor(16)
        self.network.gate.clear()
        self._first = self._pool.submit(self.batcher, marks(0))
        assert self.network.started.wait(TIMEOUT_S)

    def call(self, *values: int) -> "Future[Array]":
        waiting = len(self.batcher._jobs)
        future = self._pool.submit(self.batcher, marks(*values))
        eventually(lambda: len(self.batcher._jobs) > waiting)
        return future

    def release(self) -> None:
        self.network.gate.set()
        assert read(self._first) == [0]


def read(future: "Future[Array]") -> list[int]:
    return [int(row[0]) for row in future.result(TIMEOUT_S)]


def test_a_batch_never_exceeds_its_size_and_requests_stay_whole() -> None:
    callers = Callers()
    futures = [callers.call(*range(count)) for count in (5, 4, 3, 2, 1)]
    callers.release()
    assert [read(future) for future in futures] == [list(range(count)) for count in (5, 4, 3, 2, 1)]
    assert callers.network.batches == [1, 5, 7, 3]
    assert len(callers.batcher(marks(*range(30)))) == 30, "one that is larger than a batch"


def test_a_failure_reaches_only_the_caller_at_fault() -> None:
    callers = Callers()
    good, bad, also_good = callers.call(1), callers.call(255), callers.call(2)
    callers.release()
    assert (read(good), read(also_good)) == ([1], [2])
    with pytest.raises(RuntimeError, match="poisoned"):
        bad.result(TIMEOUT_S)
    assert callers.batcher(marks(3))[0, 0] == 3


def test_thousands_of_shuffled_calls_of_many_threads_get_their_own_rows() -> None:
    crops, network = marks(*range(64)), Marked()
    shuffled = random.Random(1)  # noqa: S311  # a test repeats itself
    wanted = [shuffled.choices(range(64), k=shuffled.choice((1, 1, 1, 2, 3, 9))) for _ in range(2000)]
    batcher = Batcher(network, max_items=32)
    with ThreadPoolExecutor(24) as pool:
        results = list(pool.map(lambda values: batcher(crops[values])[:, 0].tolist(), wanted))
    assert results == wanted
