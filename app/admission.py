"""Who may come in, and how many wait? Decided at once, by counting, before anything is read or decoded.

A request passes two doors. `enter` bounds everyone inside, by number, by caller and by buffered bytes, and refuses at
once. `turn` lets a fixed number of them work; the others wait for theirs, first come, first served. Those who would
wait longer than is useful are refused too: an answer that nobody waits for any more is work for nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final

from app.errors import QueueFull, TooManyRequests

_NEWS: Final = 0.1  # share of the newest turn in the average


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """How many requests work at once, how many wait and for how long, and what one caller or all may take.

    concurrent, queue: requests at work, and waiting.
    wait_s: who is expected to be done later than this is refused, as soon as anyone has to wait at all.
    per_client: requests of one caller that are inside; 0 means any number.
    buffered_bytes: held for all requests together.
    """

    concurrent: int
    queue: int
    wait_s: float
    per_client: int
    buffered_bytes: int


class Visit:
    """One request's stay; it returns what it reserved when it leaves."""

    __slots__ = ("_admission", "reserved_bytes")

    def __init__(self, admission: "Admission") -> None:
        self._admission = admission
        self.reserved_bytes = 0

    def reserve(self, count: int) -> None:
        """Take `count` bytes of the common buffer. Raises: QueueFull, when it is used up."""
        if self._admission.buffered_bytes + count > self._admission.limits.buffered_bytes:
            raise QueueFull("the service holds as many bytes as it may: try again in a moment")
        self._admission.buffered_bytes += count
        self.reserved_bytes += count


class Admission:
    """The two doors. Lives on one event loop; needs no lock there."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self.inside = 0
        self.waiting = 0
        self.working = 0
        self.buffered_bytes = 0
        self._by_client: Counter[str] = Counter()
        self._turns = asyncio.Semaphore(limits.concurrent)
        self._turn_s = 0.0  # how long a turn takes, averaged over the last ten or so

    def expected_s(self) -> float:
        """Seconds until one more request would be done, if turns go on taking as long as they did."""
        return (self.inside + 1) / self.limits.concurrent * self._turn_s

    @contextmanager
    def enter(self, client: str) -> Iterator[Visit]:
        """Come in, or be refused at once. Raises: QueueFull, TooManyRequests."""
        limits = self.limits
        if limits.per_client and self._by_client[client] >= limits.per_client:
            raise TooManyRequests(f"more than {limits.per_client} requests at once from one caller: wait for answers")
        if self.inside >= limits.concurrent + limits.queue:
            raise QueueFull(f"{limits.concurrent} requests at work and {limits.queue} waiting: try again in a moment")
        if self.inside >= limits.concurrent and self.expected_s() > limits.wait_s:
            raise QueueFull(f"an answer would take about {self.expected_s():.1f} s: try again in a moment")
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

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a turn to work; cancelling the wait gives the place up."""
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
            self._turn_s += _NEWS * (time.monotonic() - start - self._turn_s)
            self.working -= 1
            self._turns.release()
