"""Admission control: requests and streams over a limit are rejected before their bodies are read or decoded.

Flow: `admit` (requests per client, room in the queue) -> the body arrives (`Reservation.buffer`) -> `slot`. A fixed
number of requests has a slot; the others wait in the order of their arrival. One client may use at most half of what is
left of the queue and of the buffer, so there is room for other clients. Uploads that have not arrived are not in the
queue.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from prometheus_client import Gauge

from mien.app.errors import PayloadTooLarge, QueueFull, TooManyRequests
from mien.app.inference.runtime.cpu_count import cores
from mien.app.service.metrics import Metrics
from mien.app.settings import Settings


@dataclass(slots=True, eq=False)
class Reservation:
    """One admitted request; its bytes of the shared buffer are released when it ends."""

    client: str
    _admission: "Admission"
    buffered_bytes: int = 0

    def buffer(self, count: int) -> None:
        """Reserve bytes of the shared buffer, for bodies, and for images of responses until the client has read them.

        Raises: QueueFull, if the client has its share; PayloadTooLarge, if an empty buffer has not enough for this
            request.
        """
        buffered, limit = self._admission.buffered_bytes, self._admission.settings.max_buffered_bytes
        if 2 * (self.buffered_bytes + count) > limit:
            raise PayloadTooLarge(f"more than {limit // 2} bytes for one request: send or ask for less at once")
        if buffered[self.client] + count > limit - buffered.total() - count:
            raise QueueFull("the buffer for bodies is full: try again in a moment")
        buffered[self.client] += count
        self.buffered_bytes += count


class Admission:
    """State of admission control, with limits from the settings. Belongs to one event loop, so it needs no lock."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self._metrics = settings, metrics
        self.concurrent = settings.max_concurrent or max(8, 4 * cores())
        self.buffered_bytes: Counter[str] = Counter()
        self._by_client: Counter[str] = Counter()  # admitted requests, including those whose body is arriving
        self._waiting: Counter[str] = Counter()
        self._working: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._slots = asyncio.Semaphore(self.concurrent)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._waiting.total()

    @property
    def admitted(self) -> int:
        """Requests that wait or work."""
        return self.waiting + self._working.total()

    def remaining(self, client: str) -> int:
        """Further requests that a client may send before it has the responses of those that are admitted."""
        return max(0, self.settings.max_per_client - self._by_client[client])

    @contextmanager
    def admit(self, client: str) -> Iterator[Reservation]:
        """Admit or reject a request by its headers. Raises: QueueFull, TooManyRequests."""
        limit = self.settings.max_per_client
        if limit and self._by_client[client] >= limit:
            raise TooManyRequests(f"more than {limit} concurrent requests of a client: wait for responses")
        self._check_queue(client)
        self._by_client[client] += 1
        reservation = Reservation(client, self)
        try:
            yield reservation
        finally:
            self._by_client -= Counter((client,))  # subtraction drops clients at zero
            self.buffered_bytes -= Counter({client: reservation.buffered_bytes})

    @contextmanager
    def stream(self, client: str) -> Iterator[None]:
        """Admit or reject a stream. Raises: QueueFull, TooManyRequests."""
        per_client, limit = self.settings.max_streams_per_client, self.settings.max_streams
        if per_client and self._streams[client] >= per_client:
            raise TooManyRequests(f"{per_client} streams of one client are open: close one first")
        if self._streams.total() >= limit:
            raise QueueFull(f"{limit} streams are open: try again in a moment")
        with _counted(self._streams, client, self._metrics.streams):
            yield

    @asynccontextmanager
    async def slot(self, client: str) -> AsyncIterator[None]:
        """Wait for a slot to work in; if the wait is canceled, the request leaves the queue. Raises: QueueFull."""
        self._check_queue(client)
        with _counted(self._waiting, client, self._metrics.queue):
            await self._slots.acquire()
        try:
            with _counted(self._working, client, self._metrics.working):
                yield
        finally:
            self._slots.release()

    def _check_queue(self, client: str) -> None:
        """Check whether a request may wait. Raises: QueueFull."""
        if self._slots.locked() and self._waiting[client] >= self.settings.max_queue - self.waiting:
            waiting = f"{self._working.total()} requests running and {self.waiting} waiting"
            raise QueueFull(f"{waiting}, {self._waiting[client]} of them yours: try again in a moment")


@contextmanager
def _counted(counts: Counter[str], client: str, gauge: Gauge) -> Iterator[None]:
    counts[client] += 1
    with gauge.track_inprogress():
        try:
            yield
        finally:
            counts -= Counter((client,))  # in place; subtraction drops clients at zero
