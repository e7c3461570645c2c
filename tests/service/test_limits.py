"""Admission of requests: accepted, waiting, rejected."""

import asyncio
from contextlib import ExitStack

import pytest

from mien.app.errors import PayloadTooLarge, QueueFull
from mien.app.service.metrics import Metrics
from mien.app.service.uploads import Admission
from mien.app.settings import Settings

pytestmark = pytest.mark.anyio


def admission(*, slots: int = 1, queue: int = 3) -> Admission:
    return Admission(Settings(max_queue=queue, max_body_bytes=1024), Metrics(), slots=slots)


async def start(gate: Admission, names: str, log: list[str], done: asyncio.Event) -> dict[str, asyncio.Task[None]]:
    """Requests by name, which write their names when they get a slot, and work until `done`."""

    async def work(name: str) -> None:
        async with gate.slot():
            log.append(name)
            await done.wait()

    tasks = {name: asyncio.create_task(work(name)) for name in names}
    await asyncio.sleep(0)
    return tasks


async def finish(gate: Admission, tasks: dict[str, asyncio.Task[None]], done: asyncio.Event) -> list[str]:
    """Let all requests finish; returns the names of those that were refused."""
    done.set()
    results = await asyncio.gather(*tasks.values(), return_exceptions=True)
    assert (gate.working, gate.waiting) == (0, 0)
    return [name for name, result in zip(tasks, results, strict=True) if isinstance(result, QueueFull)]


async def test_requests_wait_in_order_and_a_canceled_one_leaves_the_queue_or_its_slot() -> None:
    gate, log, done = admission(queue=10), list[str](), asyncio.Event()
    tasks = await start(gate, "abcde", log, done)
    assert (log, gate.waiting, gate.working) == (["a"], 4, 1)
    tasks["c"].cancel()
    await asyncio.sleep(0)
    assert gate.waiting == 3
    tasks["a"].cancel()
    await asyncio.sleep(0)  # b has the slot, but has not run yet
    tasks["b"].cancel()
    assert await finish(gate, tasks, done) == []
    assert log == ["a", "d", "e"]


async def test_a_request_too_many_is_refused_until_there_is_room() -> None:
    gate, done = admission(slots=2), asyncio.Event()
    with ExitStack() as uploads:
        for _ in range(60):  # what has not arrived is not in the queue
            uploads.enter_context(gate.admit())
        tasks = await start(gate, "abcdef", [], done)
        assert gate.waiting == 3
        with pytest.raises(QueueFull, match="2 requests running and 3 waiting"), gate.admit():
            pass
    assert await finish(gate, tasks, done) == ["f"]
    with gate.admit():
        pass


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
