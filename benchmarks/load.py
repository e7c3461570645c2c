"""HTTP load generator with closed and open loop, for a service on loopback.

Closed loop: each client sends its next request after the response to the last one. Open loop: requests start at random
times (Poisson), independently of earlier responses, as independent users do; latency is measured from the scheduled
start.
"""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TYPES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png", ".webp": "image/webp"}
LOST = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: its HTTP status, or `LOST` where a connection gave no response.

    started_s: since the run began. took_s: until the response was complete.
    """

    status: int
    started_s: float
    took_s: float


def request_bytes(payload: bytes, kind: str, *, host: str) -> bytes:
    """One complete HTTP/1.1 request with an image as its body."""
    head = f"POST /v1/expressions HTTP/1.1\r\nHost: {host}\r\nContent-Type: {kind}\r\n"
    return f"{head}Content-Length: {len(payload)}\r\n\r\n".encode("ascii") + payload


class Connection:
    """A keep-alive connection, opened when needed."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def send(self, request: bytes) -> int:
        """Send a request and read its whole response; returns the status, or `LOST`."""
        try:
            if self._reader is not None and self._reader.at_eof():
                self.close()  # closed by the server while idle
            if self._reader is None or self._writer is None:
                self._reader, self._writer = await asyncio.open_connection(*self._address)
            self._writer.write(request)
            status, keep = await _read_response(self._reader)
        except (OSError, asyncio.IncompleteReadError, ValueError):
            self.close()
            return LOST
        if not keep:
            self.close()
        return status

    def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def _read_response(reader: asyncio.StreamReader) -> tuple[int, bool]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    status = int(head.split(" ", 2)[1])
    length = next(int(line.split(":", 1)[1]) for line in head.split("\r\n") if line.startswith("content-length:"))
    await reader.readexactly(length)
    return status, "\r\nconnection: close" not in head


async def closed_loop(
    address: tuple[str, int], requests: Sequence[bytes], *, count: int, concurrency: int
) -> list[Outcome]:
    """Send `count` requests with `concurrency` clients."""
    left = iter(itertools.islice(itertools.cycle(requests), count))
    start = time.perf_counter()
    outcomes: list[Outcome] = []

    async def client() -> None:
        connection = Connection(*address)
        for request in left:
            began = time.perf_counter()
            status = await connection.send(request)
            outcomes.append(Outcome(status, began - start, time.perf_counter() - began))
        connection.close()

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return outcomes


async def open_loop(address: tuple[str, int], requests: Sequence[bytes], *, count: int, rate: float) -> list[Outcome]:
    """Start `count` requests at random times, `rate` per second on average, over a pool of connections."""
    rng = random.Random(0)  # noqa: S311  # not for cryptography
    idle: list[Connection] = []
    start = time.perf_counter()
    outcomes: list[Outcome] = []

    async def one(request: bytes, due_s: float) -> None:
        connection = idle.pop() if idle else Connection(*address)
        status = await connection.send(request)
        idle.append(connection)
        outcomes.append(Outcome(status, due_s, time.perf_counter() - start - due_s))

    due_s, running = 0.0, set()
    for request in itertools.islice(itertools.cycle(requests), count):
        due_s += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, start + due_s - time.perf_counter()))
        task = asyncio.create_task(one(request, due_s))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    for connection in idle:
        connection.close()
    return outcomes


def percentiles_ms(times_s: Iterable[float]) -> dict[str, float]:
    """Median and 99th percentile, in milliseconds."""
    p50, p99 = np.quantile([*times_s], (0.5, 0.99)) * 1000
    return {"p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}


def images(folder: Path) -> list[Path]:
    """The images of a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in TYPES)


def send(port: int, photos: Sequence[Path], count: int, *, concurrency: int = 0, rate: float = 0.0) -> dict[str, Any]:
    """Send photos to a service on this machine, in a shuffled order: in an open loop with a rate, else in a closed one.

    Returns: requests per second, and their latency.
    Raises: SystemExit, if a request fails.
    """
    requests = [request_bytes(path.read_bytes(), TYPES[path.suffix.lower()], host="127.0.0.1") for path in photos]
    random.Random(0).shuffle(requests)  # noqa: S311  # not for cryptography
    address = ("127.0.0.1", port)
    if rate:
        outcomes = asyncio.run(open_loop(address, requests, count=count, rate=rate))
    else:
        outcomes = asyncio.run(closed_loop(address, requests, count=count, concurrency=concurrency))
    if failed := Counter(outcome.status for outcome in outcomes if outcome.status != 200):
        raise SystemExit(f"not every request succeeded: {dict(failed)} of {count}")
    return {
        "requests_per_s": round(count / max(outcome.started_s + outcome.took_s for outcome in outcomes), 2),
        **percentiles_ms(outcome.took_s for outcome in outcomes),
    }
