"""Admission control: requests and streams over a limit are rejected before their bodies are read or decoded.

Flow: `admit` (limits per client, room in the queue) -> the body arrives (`Reservation.buffer`) -> `slot`. A fixed
number of requests has a slot. The others wait in one queue per client, and the clients take turns: a client that sends
a lot waits for its own requests. If the queue is full, the client with most waiting requests loses its newest one
("longest queue drop"). Requests with a long expected wait are rejected too, because their clients would time out before
the response. Uploads that have not arrived are not in the queue.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from mien.app.errors import PayloadTooLarge, QueueFull, TooManyRequests
from mien.app.inference.runtime.cpu_count import cores
from mien.app.settings import Settings

_NEWEST_SHARE: Final = 0.1  # of the newest image in the moving average
_IMAGE_COST: Final = 500_000  # pixels whose decoding takes about as long as the work that every image needs


@dataclass(slots=True, eq=False)
class Reservation:
    """Place of one admitted request; its bytes of the shared buffer are released when it ends."""

    client: str
    _admission: "Admission"
    buffered_bytes: int = 0

    def buffer(self, count: int) -> None:
        """Reserve bytes of the shared buffer: at most half of what is left, so that there is room for other clients.

        It holds bodies, and the images of responses until the client has read them.

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
    """State of admission control, with limits from the settings.

    Belongs to one event loop, so it needs no lock; other threads call `measured` only.
    """

    def __init__(self, settings: Settings, on_change: Callable[[], None] = lambda: None) -> None:
        """`on_change` is called when requests or streams begin, wait or end."""
        self.settings = settings
        self._on_change = on_change
        self.concurrent = settings.max_concurrent or max(8, 4 * cores())
        self.working = 0
        self.buffered_bytes: Counter[str] = Counter()
        self._by_client: Counter[str] = Counter()  # admitted requests, including those whose body is arriving
        self._streams: Counter[str] = Counter()
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # by client, the next one first
        self._cost: Counter[str] = Counter()  # of the requests that wait or work, by client
        self._s_per_cost = 0.0  # moving average over images

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return sum(map(len, self._queues.values()))

    @property
    def admitted(self) -> int:
        """Requests that wait or work."""
        return self.waiting + self.working

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self._streams.total()

    def measured(self, pixels: int, seconds: float) -> None:
        """Include the duration of one image in the estimate of waiting times."""
        self._s_per_cost += _NEWEST_SHARE * (seconds / (pixels + _IMAGE_COST) - self._s_per_cost)

    def expected_s(self, client: str, pixels: int = 0, images: int = 1) -> float:
        """Expected time until an additional request of a client would be finished, in seconds.

        While it waits, every other client gets at most as much done as this one.
        """
        own = self._cost[client] + pixels + images * _IMAGE_COST
        others = sum(min(cost, own) for name, cost in self._cost.items() if name != client)
        return (own + others) * self._s_per_cost / cores()

    @contextmanager
    def admit(self, client: str) -> Iterator[Reservation]:
        """Admit or reject a request by its headers. Raises: QueueFull, TooManyRequests."""
        limit = self.settings.max_per_client
        if limit and self._by_client[client] >= limit:
            raise TooManyRequests(f"more than {limit} concurrent requests of a client: wait for responses")
        self._check_queue(client, 0, 1)
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
        if self.streams >= limit:
            raise QueueFull(f"{limit} streams are open: try again in a moment")
        self._streams[client] += 1
        self._on_change()
        try:
            yield
        finally:
            self._streams -= Counter((client,))
            self._on_change()

    @asynccontextmanager
    async def slot(self, client: str, *, pixels: int = 0, images: int = 1) -> AsyncIterator[None]:
        """Wait for a slot to work in; if the wait is canceled, the place in the queue is released.

        Args:
            client: whose turn it is to be.
            pixels, images: work of the request.
        Raises: QueueFull.
        """
        cost = pixels + images * _IMAGE_COST
        if self.working >= self.concurrent:
            longest = self._check_queue(client, pixels, images)
            if longest is not None and not (newest := longest.pop()).done():  # else its client just disconnected
                newest.set_exception(QueueFull("the queue is full: try again in a moment"))
        self._cost[client] += cost
        try:
            await self._wait(client)
            try:
                yield
            finally:
                self._release()
        finally:
            self._cost -= Counter({client: cost})

    async def _wait(self, client: str) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(client, deque())
        queue.append(granted)
        self._grant()
        try:
            await granted
        except asyncio.CancelledError:
            if granted in queue:
                queue.remove(granted)
                self._on_change()
            elif not granted.cancelled():
                self._release()  # canceled after the slot was granted
            raise

    def _release(self) -> None:
        self.working -= 1
        self._grant()

    def _grant(self) -> None:
        """Give free slots to the clients in turn."""
        while self.working < self.concurrent and self.waiting:
            client = next(iter(self._queues))
            queue = self._queues.pop(client)
            if queue:
                granted = queue.popleft()
                self._queues[client] = queue  # at the end
                if not granted.done():
                    self.working += 1
                    granted.set_result(None)
        self._on_change()

    def _check_queue(self, client: str, pixels: int, images: int) -> "deque[asyncio.Future[None]] | None":
        """Check whether a request may wait; returns the queue that must lose its newest request for it, if any.

        Raises: QueueFull.
        """
        if self.working < self.concurrent:
            return None
        expected_s = self.expected_s(client, pixels, images)
        if expected_s > self.settings.max_wait_s:
            raise QueueFull(f"a response would take about {expected_s:.1f} s: try again in a moment")
        if self.waiting < self.settings.max_queue:
            return None
        longest = max(self._queues.values(), key=len, default=deque())
        if not longest or len(longest) <= len(self._queues.get(client, ())) + 1:
            waiting = f"{self.concurrent} requests running and {self.waiting} waiting"
            raise QueueFull(f"{waiting}: try again in a moment")
        return longest
