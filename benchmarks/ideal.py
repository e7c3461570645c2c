"""How steady could any service be? An ideal queue, played through with the very times that the photos take.

Requests at random moments (Poisson), as many servers as cores, first come, first served, and nothing else: no network,
no hand-over between threads, no competition for caches. What a service shows beyond this is its own; what the queue
shows already comes from the photos and from chance. Shortest first, with the work known in advance, stands beside it:
no service can know that before it has looked, and any order by a guess lies between the two.
"""

import heapq
import itertools
import random
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.load import percentile


def sojourn_s(
    service_s: Sequence[float],
    *,
    servers: int,
    rate: float,
    count: int,
    seed: int = 0,
    shortest_first: bool = False,
) -> list[float]:
    """Seconds that each of `count` requests waits and works, in the order in which they are served.

    Args:
        service_s: seconds of work; taken over and over, in an order that `seed` shuffles, as the load sends photos.
        servers: that work side by side, one request each.
        rate: requests a second, on average; below `servers` over the mean of `service_s`, or the queue has no end.
        count: requests to play through.
        seed: of the moments and of the order.
        shortest_first: of those that wait, the one with the least work is next, not the one that came first.
    """
    arrivals = _arrivals(service_s, rate, count, seed)
    coming = next(arrivals, None)
    free_at = [0.0] * servers
    waiting: list[tuple[float, float, float]] = []  # what orders them, arrival, work
    taken = []
    while coming or waiting:
        free = heapq.heappop(free_at)
        if not waiting and coming:
            free = max(free, coming[0])
        while coming and coming[0] <= free:
            heapq.heappush(waiting, (coming[1] if shortest_first else coming[0], *coming))
            coming = next(arrivals, None)
        _, came, work_s = heapq.heappop(waiting)
        heapq.heappush(free_at, free + work_s)
        taken.append(free + work_s - came)
    return taken


def _arrivals(service_s: Sequence[float], rate: float, count: int, seed: int) -> Iterator[tuple[float, float]]:
    """Moment and work of each request, seconds."""
    chance = random.Random(seed)  # noqa: S311  # a repeatable load, not a secret
    order = chance.sample(service_s, len(service_s))
    now = 0.0
    for work_s in itertools.islice(itertools.cycle(order), count):
        now += chance.expovariate(rate)
        yield now, work_s


def steadiness(taken_s: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds, and their ratio."""
    p50, p99 = (percentile(taken_s, share) for share in (0.5, 0.99))
    return {"p50_ms": round(p50 * 1000, 2), "p99_ms": round(p99 * 1000, 2), "p99_over_p50": round(p99 / p50, 2)}


def references(service_s: Sequence[float], *, servers: int, rate: float, count: int = 100_000) -> dict[str, Any]:
    """What to hold a measured p99 against: each photo without any other, the ideal queue, and that of equal photos."""
    mean_s = sum(service_s) / len(service_s)
    return {
        "load": round(rate * mean_s / servers, 3),
        "alone": steadiness(service_s),
        "queue": steadiness(sojourn_s(service_s, servers=servers, rate=rate, count=count)),
        "queue_shortest_first": steadiness(
            sojourn_s(service_s, servers=servers, rate=rate, count=count, shortest_first=True)
        ),
        "queue_of_equal_photos": steadiness(sojourn_s([mean_s], servers=servers, rate=rate, count=count)),
    }
