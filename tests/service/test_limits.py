"""Admission of requests: accepted, waiting, rejected."""

import asyncio

import pytest

from mien.app.errors import PayloadTooLarge, QueueFull
from mien.app.service.metrics import Metrics
from mien.app.service.uploads import Admission
from mien.app.settings import Settings

pytestmark = pytest.mark.anyio


def admission() -> Admission:
    return Admission(Settings(max_body_bytes=1024), Metrics(), slots=1)


async def test_requests_wait_in_order_and_a_canceled_one_leaves_the_queue_or_its_slot() -> None:
    gate, log, done = admission(), list[str](), asyncio.Event()

    async def work(name: str) -> None:
        async with gate.slot():
            log.append(name)
            await done.wait()

    tasks = {name: asyncio.create_task(work(name)) for name in "abcde"}
    await asyncio.sleep(0)
    assert (log, gate.waiting, gate.working) == (["a"], 4, 1)
    tasks["c"].cancel()
    await asyncio.sleep(0)
    assert gate.waiting == 3
    tasks["a"].cancel()
    await asyncio.sleep(0)  # b has the slot, but has not run yet
    tasks["b"].cancel()
    done.set()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert (log, gate.working, gate.waiting) == (["a", "d", "e"], 0, 0)


async def test_bodies_share_a_buffer_of_three_bodies() -> None:
    gate = admission()
    with gate.admit() as first, gate.admit() as second:
        first(2072)
        second(1000)
        with pytest.raises(QueueFull):
            second(1)
    assert gate.buffered_bytes == 0
    with gate.admit() as alone:
        alone(1536)
        with pytest.raises(PayloadTooLarge, match="more than 3072 bytes"):  # in total, not per call
            alone(1537)
