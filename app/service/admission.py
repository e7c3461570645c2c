"""Admission control: requests and streams are counted, and refused at once before anything is read or decoded.

A request passes two gates. `enter` bounds all admitted requests by number, by caller and by buffered bytes. `turn` lets
a fixed number of them run, first come, first served. A request that would wait longer than is useful is refused too:
its client would give up before the response.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from app.errors import PayloadTooLarge, QueueFull, TooManyRequests

_NEWEST_SHARE: Final = 0.1  # of the newest turn in the moving average


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """Limits of requests and streams.

    concurrent, queue: requests that run, and that wait.
    wait_s: a request expected to take longer is refused, once any request has to wait.
    per_client: admitted requests of one caller; 0 means any number.
    buffered_bytes: held for all requests together.
    streams, streams_per_client: open streams, and those of one caller; 0 means any number for one caller.
    """

    concurrent: int
    queue: int
    wait_s: float
    per_client: int
    buffered_bytes: int
    streams: int
    streams_per_client: int


class Visit:
    """One admitted request; what it reserved is returned when it ends."""

    __slots__ = ("_admission", "reserved_bytes")

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self.reserved_bytes = 0

    def reserve(self, count: int) -> None:
        """Take `count` bytes of the shared buffer.

        Raises: QueueFull, when it is used up; PayloadTooLarge, when this request alone exceeds it.
        """
        if self.reserved_bytes + count > self._admission.limits.buffered_bytes:
            raise PayloadTooLarge(f"body of more than {self._admission.limits.buffered_bytes} bytes: send less at once")
        if self._admission.buffered_bytes + count > self._admission.limits.buffered_bytes:
            raise QueueFull("the buffer for request bodies is full: try again in a moment")
        self._admission.buffered_bytes += count
        self.reserved_bytes += count


class Admission:
    """The two gates, and the count of streams. Belongs to one event loop, so that it needs no lock."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.inside = 0
        self.waiting = 0
        self.working = 0
        self.buffered_bytes = 0
        self._by_client: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._turns = asyncio.Semaphore(limits.concurrent)
        self._turn_s = 0.0  # moving average of a turn's duration

    def expected_s(self) -> float:
        """Expected seconds until one more request would be finished."""
        return (self.inside + 1) / self.limits.concurrent * self._turn_s

    @contextmanager
    def enter(self, client: str) -> Iterator[Visit]:
        """Admit a request, or refuse it at once. Raises: QueueFull, TooManyRequests."""
        limits = self.limits
        if limits.per_client and self._by_client[client] >= limits.per_client:
            raise TooManyRequests(f"more than {limits.per_client} requests at once from one caller: wait for responses")
        if self.inside >= limits.concurrent + limits.queue:
            raise QueueFull(f"{limits.concurrent} requests running and {limits.queue} waiting: try again in a moment")
        if self.inside >= limits.concurrent and self.expected_s() > limits.wait_s:
            raise QueueFull(f"a response would take about {self.expected_s():.1f} s: try again in a moment")
        self.inside += 1
        self._by_client[client] += 1
        visit = Visit(self)
        try:
            yield visit
        finally:
            self.inside -= 1
            self.buffered_bytes -= visit.reserved_bytes
            self._by_client[client] -= 1
            if not self._by_client[client]:
                del self._by_client[client]

    @property
    def streams(self) -> int:
        """Open streams."""
        return self._streams.total()

    @contextmanager
    def stream(self, client: str) -> Iterator[None]:
        """Admit a stream, or refuse it at once. Raises: QueueFull, TooManyRequests."""
        limits = self.limits
        if limits.streams_per_client and self._streams[client] >= limits.streams_per_client:
            raise TooManyRequests(f"{limits.streams_per_client} streams of one caller are open: close one first")
        if self.streams >= limits.streams:
            raise QueueFull(f"{limits.streams} streams are open: try again in a moment")
        self._streams[client] += 1
        try:
            yield
        finally:
            self._streams -= Counter((client,))  # subtraction drops callers at zero

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn to run; if the wait is canceled, the place is released."""
        self.waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self.waiting -= 1
        self.working += 1
        start = time.monotonic()
        try:
            yield
        finally:
            self._turn_s += _NEWEST_SHARE * (time.monotonic() - start - self._turn_s)
            self.working -= 1
            self._turns.release()
