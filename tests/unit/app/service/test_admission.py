"""Admission of requests: accepted, waiting, rejected; the share of each client."""

import asyncio
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

from mien.app.errors import PayloadTooLarge, QueueFull
from mien.app.service.admission import Admission
from mien.app.settings import Settings

pytestmark = pytest.mark.anyio
LARGE_PX = 12_000_000


def admission(**changes: float) -> Admission:
    limits = {"concurrent": 2, "queue": 3, "wait_s": 10.0, "per_client": 0, "buffered_bytes": 2000}
    limits |= {"streams": 3, "streams_per_client": 0} | changes
    return Admission(Settings(**{f"max_{name}": value for name, value in limits.items()}))


class Scene:
    """Requests of several clients; `log` has their names in the order in which they got a slot."""

    def __init__(self, gate: Admission) -> None:
        self.gate, self.log = gate, list[str]()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.done = asyncio.Event()

    async def send(self, *names: str, **work: Any) -> None:
        """Requests named after their client and a number, such as `a1`; each works until `done`."""
        for name in names:
            self.tasks[name] = asyncio.create_task(self._work(name, **work))
            for _ in range(3):  # until the events that follow have been handled
                await asyncio.sleep(0)

    async def _work(self, name: str, **work: Any) -> None:
        async with self.gate.slot(name[0], **work):
            self.log.append(name)
            await self.done.wait()

    async def finish(self) -> None:
        self.done.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        assert (self.gate.admitted, self.gate.working, self.gate.waiting) == (0, 0, 0)

    def refused(self) -> list[str]:
        return [name for name, task in self.tasks.items() if task.done() and isinstance(task.exception(), QueueFull)]


async def test_clients_take_turns_and_a_canceled_wait_releases_its_place() -> None:
    requests = Scene(admission(concurrent=1, queue=10))
    await requests.send("a1", "a2", "a3", "a4", "b1", "c1")
    assert (requests.log, requests.gate.waiting, requests.gate.admitted) == (["a1"], 5, 6)
    requests.tasks["a3"].cancel()
    await asyncio.sleep(0)
    assert requests.gate.waiting == 4
    await requests.finish()
    assert requests.log == ["a1", "a2", "b1", "c1", "a4"]


async def test_a_request_that_is_canceled_as_it_gets_its_slot_releases_it() -> None:
    requests = Scene(admission(concurrent=1))
    await requests.send("a1", "a2", "a3")
    requests.tasks["a1"].cancel()
    await asyncio.sleep(0)  # a2 has the slot, but has not run yet
    requests.tasks["a2"].cancel()
    await requests.finish()
    assert requests.log == ["a1", "a3"]


async def test_a_full_queue_rejects_the_newest_request_of_the_client_with_most() -> None:
    requests = Scene(admission())
    await requests.send("a1", "a2", "a3", "a4", "a5", "a6")
    assert requests.refused() == ["a6"]
    await requests.send("b1")
    assert requests.refused() == ["a5", "a6"], "b has its share"
    await requests.send("b2")
    assert requests.refused() == ["a5", "a6", "b2"], "and no more"
    with pytest.raises(QueueFull, match="2 requests running and 3 waiting"), requests.gate.admit("a"):
        pass
    await requests.finish()
    with requests.gate.admit("a"):
        pass


async def test_a_client_that_disconnects_in_a_full_queue_fails_no_other_one() -> None:
    requests = Scene(admission())
    await requests.send("a1", "a2", "a3", "a4", "a5")
    requests.tasks["b1"] = asyncio.create_task(requests._work("b1"))
    requests.tasks["a5"].cancel()  # b1 comes before it has left the queue
    await requests.finish()
    assert sorted(requests.log) == ["a1", "a2", "a3", "a4", "b1"]


async def test_uploads_are_not_in_the_queue() -> None:
    gate = admission()
    with ExitStack() as uploads:
        for _ in range(60):
            uploads.enter_context(gate.admit("stalled"))
        with gate.admit("other"):
            async with gate.slot("other", pixels=LARGE_PX):
                assert gate.admitted == 1


def test_one_client_cannot_fill_the_buffer_for_bodies() -> None:
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


def test_the_expected_wait_follows_the_pixels_and_not_the_requests() -> None:
    gate = admission()
    for _ in range(100):
        gate.measured(LARGE_PX, 0.2)  # two batches of large images were labeled
    large_s, small_s = gate.expected_s("a", LARGE_PX), gate.expected_s("a", 300_000)
    assert 10 < large_s / small_s < 20


async def test_requests_that_would_wait_too_long_are_rejected_unless_a_slot_is_free() -> None:
    gate = admission(concurrent=2, queue=100, wait_s=0.5)
    for _ in range(200):
        gate.measured(LARGE_PX, 5.0)
    async with AsyncExitStack() as running:
        for _ in range(2):
            await running.enter_async_context(gate.slot("a", pixels=LARGE_PX))
        with pytest.raises(QueueFull, match="would take about"):
            await running.enter_async_context(gate.slot("a", pixels=LARGE_PX))
        with pytest.raises(QueueFull, match="would take about"), gate.admit("a"):
            pass
        with gate.admit("b"):
            pass  # a small request of another client waits for its turn only
    assert gate.admitted == 0
