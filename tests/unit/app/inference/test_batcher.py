"""Batching of concurrent callers: correct results, no unnecessary waiting, and nothing lost."""

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from unittest.mock import Mock

import numpy as np
import pytest

from mien.app.errors import QueueFull, ShuttingDown
from mien.app.inference.batcher import Batcher
from mien.data.contract import CROP_PX, LABELS, Array

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


def read(future: "Future[Array]") -> list[int]:
    return [int(row[0]) for row in future.result(TIMEOUT_S)]


@pytest.fixture
def network() -> Marked:
    return Marked()


@pytest.fixture
def batcher(network: Marked) -> Iterator[Batcher]:
    batcher = Batcher(network, max_faces=8, max_wait_s=0.05, max_queue=20)
    yield batcher
    network.gate.set()
    batcher.close()


def hold(network: Marked, batcher: Batcher) -> "Future[Array]":
    """Occupy the batcher with one face until the gate opens."""
    network.gate.clear()
    first = batcher.submit(marks(0))
    assert network.started.wait(TIMEOUT_S)
    return first


def test_faces_queued_during_one_inference_share_the_next(network: Marked, batcher: Batcher) -> None:
    hold(network, batcher)
    futures = [batcher.submit(marks(value, value + 1)) for value in (10, 20, 30)]
    assert batcher.waiting == 6
    network.gate.set()
    assert [read(future) for future in futures] == [[10, 11], [20, 21], [30, 31]]
    assert batcher.submit(marks()).result(0).shape == (0, len(LABELS)), "of no face, without an inference"
    assert network.batches == [1, 6]


def test_a_batch_never_exceeds_its_size_and_requests_stay_whole(network: Marked, batcher: Batcher) -> None:
    hold(network, batcher)
    futures = [batcher.submit(marks(*range(count))) for count in (5, 4, 3, 2, 1)]
    network.gate.set()
    assert [read(future) for future in futures] == [list(range(count)) for count in (5, 4, 3, 2, 1)]
    assert network.batches == [1, 5, 7, 3]
    assert read(batcher.submit(marks(*range(30)))) == list(range(30)), "one that is larger than a batch"


def test_an_idle_batcher_starts_immediately(network: Marked) -> None:
    batcher = Batcher(network, max_wait_s=600.0)  # waiting to fill a batch would time the test out
    for value in range(5):
        assert read(batcher.submit(marks(value))) == [value]
        time.sleep(0.01)  # the batcher becomes idle
    batcher.close()


def test_a_full_queue_rejects_immediately_and_recovers(network: Marked, batcher: Batcher) -> None:
    hold(network, batcher)
    futures = [batcher.submit(marks(1, 2, 3, 4)) for _ in range(5)]
    with pytest.raises(QueueFull, match="20 of at most 20 faces are queued"):
        batcher.submit(marks(9))
    network.gate.set()
    assert all(read(future) == [1, 2, 3, 4] for future in futures)
    assert read(batcher.submit(marks(9))) == [9]
    assert batcher.waiting == 0


def test_a_failure_reaches_only_the_caller_at_fault(network: Marked, batcher: Batcher) -> None:
    hold(network, batcher)
    good, bad, also_good = batcher.submit(marks(1)), batcher.submit(marks(255)), batcher.submit(marks(2))
    network.gate.set()
    assert (read(good), read(also_good)) == ([1], [2])
    with pytest.raises(RuntimeError, match="poisoned"):
        bad.result(TIMEOUT_S)
    assert read(batcher.submit(marks(3))) == [3]


@pytest.mark.anyio
async def test_an_awaiting_caller_can_be_canceled_without_affecting_others(network: Marked, batcher: Batcher) -> None:
    hold(network, batcher)
    late = asyncio.create_task(batcher.classify(marks(5)))
    other = asyncio.create_task(batcher.classify(marks(6)))
    await asyncio.sleep(0)
    late.cancel()
    with pytest.raises(asyncio.CancelledError):
        await late
    network.gate.set()
    assert (await other)[0, 0] == 6
    assert network.batches == [1, 1]


def test_close_finishes_accepted_work_and_rejects_the_rest(network: Marked) -> None:
    batcher = Batcher(network, max_faces=2)
    first = hold(network, batcher)
    futures = [batcher.submit(marks(value)) for value in range(5)]
    closing = threading.Thread(target=batcher.close)
    closing.start()
    while True:
        try:
            futures.append(batcher.submit(marks(len(futures))))
        except ShuttingDown:
            break
    network.gate.set()
    closing.join(TIMEOUT_S)
    assert read(first) == [0]
    assert [read(future) for future in futures] == [[index] for index in range(len(futures))]
    batcher.close()


def test_a_failing_callback_is_logged_and_every_caller_gets_its_rows(
    network: Marked, caplog: pytest.LogCaptureFixture
) -> None:
    batcher = Batcher(network, on_batch=Mock(side_effect=OSError("disk full")))
    for value in (1, 2, 3):
        assert read(batcher.submit(marks(value))) == [value]
    batcher.close()
    assert "disk full" in caplog.text


@pytest.mark.anyio
async def test_ten_thousand_shuffled_concurrent_requests_get_their_own_results(network: Marked) -> None:
    crops = marks(*range(64))
    shuffled = random.Random(1)  # noqa: S311  # a test repeats itself
    requests = [shuffled.choices(range(64), k=shuffled.choice((0, 1, 1, 1, 2, 3, 9))) for _ in range(10_000)]
    sizes: list[int] = []
    batcher = Batcher(network, max_queue=100_000, on_batch=sizes.append)

    async def ask(wanted: list[int]) -> None:
        await asyncio.sleep(shuffled.random() / 10)
        rows = await batcher.classify(crops[wanted])
        assert rows.tolist() == [[float(mark)] * len(LABELS) for mark in wanted]

    await asyncio.gather(*(ask(wanted) for wanted in requests))
    batcher.close()
    assert sum(sizes) == sum(map(len, requests))
    assert max(sizes) > 1
