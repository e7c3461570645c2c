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
from typing import Final

from mien.app.errors import PayloadTooLarge, QueueFull, TooManyRequests
from mien.app.inference.runtime.cpu_count import cores
from mien.app.settings import Settings

_NEWEST_SHARE: Final = 0.1  # of the newest turn in the moving average


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
        limit = self._admission.settings.max_buffered_bytes
        if self.reserved_bytes + count > limit:
            raise PayloadTooLarge(f"body of more than {limit} bytes: send less at once")
        if self._admission.buffered_bytes + count > limit:
            raise QueueFull("the buffer for request bodies is full: try again in a moment")
        self._admission.buffered_bytes += count
        self.reserved_bytes += count


class Admission:
    """State of admission control, with limits from the settings. Belongs to one event loop, so it needs no lock."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.concurrent = settings.max_concurrent or max(8, 4 * cores())
        self.inside = 0
        self.waiting = 0
        self.working = 0
        self.buffered_bytes = 0
        self._by_client: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._turns = asyncio.Semaphore(self.concurrent)
        self._turn_s = 0.0  # moving average of the duration of a turn

    def expected_s(self) -> float:
        """Expected time until an additional request would be finished, in seconds."""
        return (self.inside + 1) / self.concurrent * self._turn_s

    @contextmanager
    def enter(self, client: str) -> Iterator[Visit]:
        """Admit or reject a request. Raises: QueueFull, TooManyRequests."""
        per_client, queue = self.settings.max_per_client, self.settings.max_queue
        if per_client and self._by_client[client] >= per_client:
            raise TooManyRequests(f"more than {per_client} concurrent requests of a client: wait for responses")
        if self.inside >= self.concurrent + queue:
            raise QueueFull(f"{self.concurrent} requests running and {queue} waiting: try again in a moment")
        if self.inside >= self.concurrent and self.expected_s() > self.settings.max_wait_s:
            raise QueueFull(f"a response would take about {self.expected_s():.1f} s: try again in a moment")
        self.inside += 1
        self._by_client[client] += 1
        visit = Visit(self)
        try:
            yield visit
        finally:
            self.inside -= 1
            self.buffered_bytes -= visit.reserved_bytes
            self._by_client -= Counter((client,))  # subtraction drops clients at zero

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self._streams.total()

    @contextmanager
    def stream(self, client: str) -> Iterator[None]:
        """Admit or reject a stream. Raises: QueueFull, TooManyRequests."""
        per_client, limit = self.settings.max_streams_per_client, self.settings.max_streams
        if per_client and self._streams[client] >= per_client:
            raise TooManyRequests(f"{per_client} streams of one client are open: close one first")
        if self.streams >= limit:
            raise QueueFull(f"{limit} streams are open: try again in a moment")
        self._streams[client] += 1
        try:
            yield
        finally:
            self._streams -= Counter((client,))

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
