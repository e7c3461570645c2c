"""Admission of requests: accepted, waiting, rejected."""

import asyncio
from contextlib import ExitStack

import pytest

from mien.app.errors import PayloadTooLarge, QueueFull
from mien.app.service.metrics import Metrics
from mien.app.service.uploads import Admission
from mien.app.settings import Settings

pytestmark = pytest.mark.anyio


def admission(slots: int = 2, **changes: int) -> Admission:
    return Admission(Settings(**{"max_queue": 3, "max_body_bytes": 1024} | changes), Metrics(), slots=slots)


class Scene:
    """Several requests; `log` has their names in the order in which they got a slot."""

    def __init__(self, gate: Admission) -> None:
        self.gate, self.log = gate, list[str]()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.done = asyncio.Event()

    async def send(self, *names: str) -> None:
        """Requests by name; each works until `done`."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._work(name))
            for _ in range(3):  # until the events that follow have been handled
                await asyncio.sleep(0)

    async def _work(self, name: str) -> None:
        async with self.gate.slot():
            self.log.append(name)
            await self.done.wait()

    async def finish(self) -> None:
        self.done.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert (self.gate.working, self.gate.waiting) == (0, 0)

    def refused(self) -> list[str]:
        return [name for name, task in self.tasks.items() if task.done() and isinstance(task.exception(), QueueFull)]


async def test_requests_wait_in_order_and_a_canceled_wait_leaves_the_queue() -> None:
    requests = Scene(admission(slots=1, max_queue=10))
    await requests.send("a1", "a2", "a3", "b1", "c1")
    assert (requests.log, requests.gate.waiting, requests.gate.working) == (["a1"], 4, 1)
    requests.tasks["a3"].cancel()
    await asyncio.sleep(0)
    assert requests.gate.waiting == 3
    await requests.finish()
    assert requests.log == ["a1", "a2", "b1", "c1"]


async def test_a_request_that_is_canceled_as_it_gets_its_slot_releases_it() -> None:
    requests = Scene(admission(slots=1))
    await requests.send("a1", "a2", "a3")
    requests.tasks["a1"].cancel()
    await asyncio.sleep(0)  # a2 has the slot, but has not run yet
    requests.tasks["a2"].cancel()
    await requests.finish()
    assert requests.log == ["a1", "a3"]


async def test_a_request_too_many_is_refused_until_there_is_room() -> None:
    requests = Scene(admission())
    await requests.send("a", "b", "c", "d", "e", "f")
    assert (requests.refused(), requests.gate.waiting) == (["f"], 3)
    with pytest.raises(QueueFull, match="2 requests running and 3 waiting"), requests.gate.admit():
        pass
    await requests.finish()
    with requests.gate.admit():
        pass


async def test_uploads_are_not_in_the_queue() -> None:
    gate = admission()
    with ExitStack() as uploads:
        for _ in range(60):
            uploads.enter_context(gate.admit())
        async with gate.slot():
            assert (gate.working, gate.waiting) == (1, 0)


async def test_bodies_share_a_buffer() -> None:
    gate = admission()
    with gate.admit() as first, gate.admit() as second:
        first.buffer(2072)
        second.buffer(1000)
        with pytest.raises(QueueFull):
            second.buffer(1)
    assert gate.buffered_bytes == 0
    with gate.admit() as alone:
        alone.buffer(1536)
        with pytest.raises(PayloadTooLarge, match="more than 3072 bytes"):  # in total, not per call
            alone.buffer(1537)
