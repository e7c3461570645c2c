"""Admission control: requests and streams over a limit are rejected before their bodies are read or decoded.

There are two stages. `enter` limits admitted requests in total, per client and by buffered bytes. `turn` runs a fixed
number of them, first come, first served. Requests with a long expected wait are rejected too, because their clients
would time out before the response.
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

    Attributes:
        concurrent, queue: maximum number of running and of waiting requests.
        wait_s: if any request is waiting, requests with a longer expected time are rejected.
        per_client: maximum number of admitted requests per client; 0: no limit.
        buffered_bytes: maximum size of all request bodies together.
        streams, streams_per_client: maximum number of open streams, and per client; 0: no limit per client.
    """

    concurrent: int
    queue: int
    wait_s: float
    per_client: int
    buffered_bytes: int
    streams: int
    streams_per_client: int


class Visit:
    """One admitted request; its reserved bytes are released when it ends."""

    __slots__ = ("_admission", "reserved_bytes")

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self.reserved_bytes = 0

    def reserve(self, count: int) -> None:
        """Reserve bytes of the shared buffer.

        Raises: QueueFull, if the buffer is full; PayloadTooLarge, if this request alone exceeds it.
        """
        if self.reserved_bytes + count > self._admission.limits.buffered_bytes:
            raise PayloadTooLarge(f"body of more than {self._admission.limits.buffered_bytes} bytes: send less at once")
        if self._admission.buffered_bytes + count > self._admission.limits.buffered_bytes:
            raise QueueFull("the buffer for request bodies is full: try again in a moment")
        self._admission.buffered_bytes += count
        self.reserved_bytes += count


class Admission:
    """State of admission control. Belongs to one event loop, so it needs no lock."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.inside = 0
        self.waiting = 0
        self.working = 0
        self.buffered_bytes = 0
        self._by_client: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._turns = asyncio.Semaphore(limits.concurrent)
        self._turn_s = 0.0  # moving average of the duration of a turn

    def expected_s(self) -> float:
        """Expected time until an additional request would be finished, in seconds."""
        return (self.inside + 1) / self.limits.concurrent * self._turn_s

    @contextmanager
    def enter(self, client: str) -> Iterator[Visit]:
        """Admit or reject a request. Raises: QueueFull, TooManyRequests."""
        limits = self.limits
        if limits.per_client and self._by_client[client] >= limits.per_client:
            raise TooManyRequests(f"more than {limits.per_client} concurrent requests of a client: wait for responses")
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
        """Number of open streams."""
        return self._streams.total()

    @contextmanager
    def stream(self, client: str) -> Iterator[None]:
        """Admit or reject a stream. Raises: QueueFull, TooManyRequests."""
        limits = self.limits
        if limits.streams_per_client and self._streams[client] >= limits.streams_per_client:
            raise TooManyRequests(f"{limits.streams_per_client} streams of one client are open: close one first")
        if self.streams >= limits.streams:
            raise QueueFull(f"{limits.streams} streams are open: try again in a moment")
        self._streams[client] += 1
        try:
            yield
        finally:
            self._streams -= Counter((client,))  # subtraction drops clients at zero

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
