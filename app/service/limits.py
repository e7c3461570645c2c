"""Admission control: requests and streams over a limit are rejected before their bodies are read or decoded.

Flow: `admit` (room in the queue) -> the body arrives (`Reservation.buffer`) -> `slot`. A fixed number of requests has a
slot; the others wait in the order of their arrival. Uploads that have not arrived are not in the queue.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from mien.app.cpu_count import cores
from mien.app.errors import PayloadTooLarge, QueueFull
from mien.app.service.metrics import Metrics
from mien.app.settings import Settings

SLOTS: Final = max(8, 4 * cores())  # requests that are processed at once


@dataclass(slots=True, eq=False)
class Reservation:
    """One admitted request; its bytes of the shared buffer are released when it ends."""

    _admission: "Admission"
    buffered_bytes: int = 0

    def buffer(self, count: int) -> None:
        """Reserve bytes of the shared buffer, for bodies, and for images of responses until the client has read them.

        Raises: QueueFull, if others fill the buffer; PayloadTooLarge, if an empty buffer has not enough for this
            request.
        """
        limit = self._admission.settings.max_buffered_bytes
        if self.buffered_bytes + count > limit:
            raise PayloadTooLarge(f"more than {limit} bytes for one request: send or ask for less at once")
        if self._admission.buffered_bytes + count > limit:
            raise QueueFull("the buffer for bodies is full: try again in a moment")
        self._admission.buffered_bytes += count
        self.buffered_bytes += count


class Admission:
    """State of admission control, with limits from the settings. Belongs to one event loop, so it needs no lock."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self.settings, self._metrics = settings, metrics
        self.buffered_bytes = self.waiting = self.working = self._streams = 0
        self._slots = asyncio.Semaphore(SLOTS)

    @contextmanager
    def admit(self) -> Iterator[Reservation]:
        """Admit or reject a request by its headers. Raises: QueueFull."""
        self._check_queue()
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            self.buffered_bytes -= reservation.buffered_bytes

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Admit or reject a stream. Raises: QueueFull."""
        if self._streams >= self.settings.max_streams:
            raise QueueFull(f"{self._streams} streams are open: try again in a moment")
        self._streams += 1
        try:
            with self._metrics.streams.track_inprogress():
                yield
        finally:
            self._streams -= 1

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot to work in; if the wait is canceled, the request leaves the queue. Raises: QueueFull."""
        self._check_queue()
        self.waiting += 1
        try:
            with self._metrics.queue.track_inprogress():
                await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.working += 1
        try:
            with self._metrics.working.track_inprogress():
                yield
        finally:
            self.working -= 1
            self._slots.release()

    def _check_queue(self) -> None:
        """Check whether a request may wait. Raises: QueueFull."""
        if self._slots.locked() and self.waiting >= self.settings.max_queue:
            raise QueueFull(f"{self.working} requests running and {self.waiting} waiting: try again in a moment")
