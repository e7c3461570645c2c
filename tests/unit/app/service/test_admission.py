"""Admission of requests: accepted, waiting, rejected."""

import asyncio
from contextlib import ExitStack

import pytest

from app.errors import PayloadTooLarge, QueueFull, TooManyRequests
from app.service.admission import Admission, AdmissionLimits


def admission(**changes: float) -> Admission:
    limits = {"concurrent": 2, "queue": 3, "wait_s": 10.0, "per_client": 0, "buffered_bytes": 1000}
    limits |= {"streams": 3, "streams_per_client": 0} | changes
    return Admission(AdmissionLimits(**limits))  # type: ignore[arg-type]


def test_requests_are_rejected_at_the_limit_and_accepted_again_afterwards() -> None:
    house = admission()
    with ExitStack() as visits:
        for number in range(5):
            visits.enter_context(house.enter(f"client {number}"))
        with pytest.raises(QueueFull, match="2 requests running and 3 waiting"):
            visits.enter_context(house.enter("one more"))
        assert house.inside == 5
    assert house.inside == 0
    with house.enter("one more"):
        assert house.inside == 1


def test_a_client_has_its_own_limit() -> None:
    house = admission(per_client=1)
    with house.enter("a"), house.enter("b"), pytest.raises(TooManyRequests), house.enter("a"):
        pass
    with house.enter("a"):
        pass


def test_reserved_bytes_are_released_at_the_end_of_a_request() -> None:
    house = admission()
    with house.enter("a") as first, house.enter("b") as second:
        first.reserve(600)
        second.reserve(400)
        with pytest.raises(QueueFull):
            second.reserve(1)
    assert house.buffered_bytes == 0


def test_a_request_that_alone_exceeds_the_buffer_is_too_large_without_retry() -> None:
    with admission().enter("a") as visit, pytest.raises(PayloadTooLarge, match="more than 1000 bytes"):
        visit.reserve(1001)


def test_one_client_cannot_hold_all_streams() -> None:
    house = admission(streams_per_client=2)
    with ExitStack() as streams:
        for _ in range(2):
            streams.enter_context(house.stream("a"))
        with pytest.raises(TooManyRequests, match="2 streams of one client"):
            streams.enter_context(house.stream("a"))
        streams.enter_context(house.stream("b"))
        with pytest.raises(QueueFull, match="3 streams are open"):
            streams.enter_context(house.stream("b"))
    assert house.streams == 0
    with house.stream("a"):
        assert house.streams == 1


def test_turns_are_in_order_and_a_canceled_wait_releases_its_place() -> None:
    async def scene() -> None:
        house = admission(concurrent=1)
        order: list[str] = []
        done = asyncio.Event()

        async def work(name: str) -> None:
            async with house.turn():
                order.append(name)
                await done.wait()

        tasks = [asyncio.create_task(work(name)) for name in "abc"]
        await asyncio.sleep(0.01)
        assert (order, house.waiting, house.working) == (["a"], 2, 1)
        tasks[1].cancel()
        await asyncio.sleep(0.01)
        assert house.waiting == 1
        done.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (order, house.waiting, house.working) == (["a", "c"], 0, 0)

    asyncio.run(scene())


def test_requests_that_would_wait_too_long_are_rejected_before_the_queue_is_full() -> None:
    async def scene() -> None:
        house = admission(concurrent=1, queue=100, wait_s=0.5)
        for _ in range(40):
            async with house.turn():
                await asyncio.sleep(0.01)
        turn_s = house.expected_s()
        assert turn_s > 0.008
        with ExitStack() as visits:

            def crowd() -> None:
                for number in range(101):
                    visits.enter_context(house.enter(str(number)))

            with pytest.raises(QueueFull, match=r"would take about 0\.[56] s"):
                crowd()
            assert house.inside == pytest.approx(0.5 / turn_s, abs=1.5)

    asyncio.run(scene())


def test_no_request_is_rejected_for_its_expected_time_while_a_turn_is_free() -> None:
    async def scene() -> None:
        house = admission(concurrent=2, wait_s=0.001)
        async with house.turn():
            await asyncio.sleep(0.05)
        with house.enter("a"), house.enter("b"), pytest.raises(QueueFull), house.enter("c"):
            pass

    asyncio.run(scene())
