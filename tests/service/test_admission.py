"""Admission of requests: accepted, waiting, rejected; the share of each client."""

import asyncio
from contextlib import ExitStack

import pytest

from mien.app.errors import PayloadTooLarge, QueueFull, TooManyRequests
from mien.app.service.admission import Admission
from mien.app.service.metrics import Metrics
from mien.app.settings import Settings

pytestmark = pytest.mark.anyio


def admission(**changes: float) -> Admission:
    limits = {"concurrent": 2, "queue": 7, "per_client": 0, "buffered_bytes": 2000} | changes
    return Admission(Settings(**{f"max_{name}": value for name, value in limits.items()}), Metrics())


class Scene:
    """Requests of several clients; `log` has their names in the order in which they got a slot."""

    def __init__(self, gate: Admission) -> None:
        self.gate, self.log = gate, list[str]()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.done = asyncio.Event()

    async def send(self, *names: str) -> None:
        """Requests named after their client and a number, such as `a1`; each works until `done`."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._work(name))
            for _ in range(3):  # until the events that follow have been handled
                await asyncio.sleep(0)

    async def _work(self, name: str) -> None:
        async with self.gate.slot(name[0]):
            self.log.append(name)
            await self.done.wait()

    async def finish(self) -> None:
        self.done.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert (self.gate.admitted, self.gate.waiting) == (0, 0)

    def refused(self) -> list[str]:
        return [name for name, task in self.tasks.items() if task.done() and isinstance(task.exception(), QueueFull)]


async def test_requests_wait_in_order_and_a_canceled_wait_leaves_the_queue() -> None:
    requests = Scene(admission(concurrent=1, queue=10))
    await requests.send("a1", "a2", "a3", "b1", "c1")
    assert (requests.log, requests.gate.waiting, requests.gate.admitted) == (["a1"], 4, 5)
    requests.tasks["a3"].cancel()
    await asyncio.sleep(0)
    assert requests.gate.waiting == 3
    await requests.finish()
    assert requests.log == ["a1", "a2", "b1", "c1"]


async def test_a_request_that_is_canceled_as_it_gets_its_slot_releases_it() -> None:
    requests = Scene(admission(concurrent=1))
    await requests.send("a1", "a2", "a3")
    requests.tasks["a1"].cancel()
    await asyncio.sleep(0)  # a2 has the slot, but has not run yet
    requests.tasks["a2"].cancel()
    await requests.finish()
    assert requests.log == ["a1", "a3"]


async def test_one_client_cannot_fill_the_queue() -> None:
    requests = Scene(admission(concurrent=2, queue=7))
    await requests.send("a1", "a2", "a3", "a4", "a5", "a6", "a7")
    assert requests.refused() == ["a7"], "half of the queue of seven, rounded up"
    await requests.send("b1", "b2", "b3", "c1", "c2")
    assert requests.refused() == ["a7", "b3", "c2"]
    assert requests.gate.waiting == 7
    for client in "abcd":
        with pytest.raises(QueueFull, match="2 requests running and 7 waiting"), requests.gate.admit(client):
            pass
    await requests.finish()
    with requests.gate.admit("a"):
        pass


async def test_one_client_has_as_many_requests_as_its_limit() -> None:
    gate = admission(per_client=2)
    with gate.admit("a"), gate.admit("a"), gate.admit("b"):
        with pytest.raises(TooManyRequests, match="more than 2"), gate.admit("a"):
            pass
        with gate.admit("b"):
            pass
    with gate.admit("a"):
        pass


async def test_uploads_are_not_in_the_queue() -> None:
    gate = admission()
    with ExitStack() as uploads:
        for _ in range(60):
            uploads.enter_context(gate.admit("stalled"))
        with gate.admit("other"):
            async with gate.slot("other"):
                assert gate.admitted == 1


async def test_one_client_cannot_fill_the_buffer_for_bodies() -> None:
    gate = admission()
    with gate.admit("a") as first, gate.admit("a") as second, gate.admit("b") as other:
        first.buffer(600)
        second.buffer(400)
        with pytest.raises(QueueFull):
            second.buffer(1)
        other.buffer(500)
        with pytest.raises(QueueFull):
            other.buffer(1)
    assert gate.buffered_bytes.total() == 0
    with gate.admit("a") as alone, pytest.raises(PayloadTooLarge, match="more than 1000 bytes"):
        alone.buffer(1001)
