"""Admission of requests: accepted, waiting, rejected."""

import asyncio
from contextlib import ExitStack

import pytest

from mien.app.errors import PayloadTooLarge, QueueFull, TooManyRequests
from mien.app.service.admission import Admission
from mien.app.settings import Settings


def admission(**changes: float) -> Admission:
    limits = {"concurrent": 2, "queue": 3, "wait_s": 10.0, "per_client": 0, "buffered_bytes": 2000}
    limits |= {"streams": 3, "streams_per_client": 0} | changes
    return Admission(Settings(**{f"max_{name}": value for name, value in limits.items()}))


def test_requests_are_rejected_at_the_limit_and_accepted_again_afterwards() -> None:
    gate = admission()
    with ExitStack() as visits:
        for number in range(5):
            visits.enter_context(gate.enter(f"client {number}"))
        with pytest.raises(QueueFull, match="2 requests running and 3 waiting"):
            visits.enter_context(gate.enter("one more"))
        assert gate.inside == 5
    assert gate.inside == 0
    with gate.enter("one more"):
        assert gate.inside == 1


def test_a_client_has_its_own_limit() -> None:
    gate = admission(per_client=1)
    with gate.enter("a"), gate.enter("b"), pytest.raises(TooManyRequests), gate.enter("a"):
        pass
    with gate.enter("a"):
        pass


def test_reserved_bytes_are_released_at_the_end_of_a_request() -> None:
    gate = admission()
    with gate.enter("a") as first, gate.enter("b") as second:
        first.reserve(1200)
        second.reserve(800)
        with pytest.raises(QueueFull):
            second.reserve(1)
    assert gate.buffered_bytes == 0


def test_a_request_that_alone_exceeds_the_buffer_is_too_large_without_retry() -> None:
    with admission().enter("a") as visit, pytest.raises(PayloadTooLarge, match="more than 2000 bytes"):
        visit.reserve(2001)


def test_one_client_cannot_hold_all_streams() -> None:
    gate = admission(streams_per_client=2)
    with ExitStack() as streams:
        for _ in range(2):
            streams.enter_context(gate.stream("a"))
        with pytest.raises(TooManyRequests, match="2 streams of one client"):
            streams.enter_context(gate.stream("a"))
        streams.enter_context(gate.stream("b"))
        with pytest.raises(QueueFull, match="3 streams are open"):
            streams.enter_context(gate.stream("b"))
    assert gate.streams == 0
    with gate.stream("a"):
        assert gate.streams == 1


def test_turns_are_in_order_and_a_canceled_wait_releases_its_place() -> None:
    async def scene() -> None:
        gate = admission(concurrent=1)
        order: list[str] = []
        done = asyncio.Event()

        async def work(name: str) -> None:
            async with gate.turn():
                order.append(name)
                await done.wait()

        tasks = [asyncio.create_task(work(name)) for name in "abc"]
        await asyncio.sleep(0.01)
        assert (order, gate.waiting, gate.working) == (["a"], 2, 1)
        tasks[1].cancel()
        await asyncio.sleep(0.01)
        assert gate.waiting == 1
        done.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (order, gate.waiting, gate.working) == (["a", "c"], 0, 0)

    asyncio.run(scene())


def test_requests_that_would_wait_too_long_are_rejected_before_the_queue_is_full() -> None:
    async def scene() -> None:
        gate = admission(concurrent=1, queue=100, wait_s=0.5)
        for _ in range(40):
            async with gate.turn():
                await asyncio.sleep(0.01)
        turn_s = gate.expected_s()
        assert turn_s > 0.008
        with ExitStack() as visits:

            def crowd() -> None:
                for number in range(101):
                    visits.enter_context(gate.enter(str(number)))

            with pytest.raises(QueueFull, match=r"would take about 0\.[56] s"):
                crowd()
            assert gate.inside == pytest.approx(0.5 / turn_s, abs=1.5)

    asyncio.run(scene())


def test_no_request_is_rejected_for_its_expected_time_while_a_turn_is_free() -> None:
    async def scene() -> None:
        gate = admission(concurrent=2, wait_s=0.001)
        async with gate.turn():
            await asyncio.sleep(0.05)
        with gate.enter("a"), gate.enter("b"), pytest.raises(QueueFull), gate.enter("c"):
            pass

    asyncio.run(scene())
