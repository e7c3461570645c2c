"""How steady could any service be? An ideal queue, played through with the very times that the photos take.

Requests at random moments (Poisson), as many servers as cores, first come, first served, and nothing else: no network,
no hand-over between threads, no competition for caches. What a service shows beyond this is its own; what the queue
shows already comes from the photos and from chance.
"""

import heapq
import itertools
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.load import percentile


def sojourn_s(service_s: Sequence[float], *, servers: int, rate: float, count: int, seed: int = 0) -> list[float]:
    """Seconds that each of `count` requests waits and works, in order of arrival.

    Args:
        service_s: seconds of work; taken over and over, in an order that `seed` shuffles, as the load sends photos.
        servers: that work side by side, one request each.
        rate: requests a second, on average; below `servers` over the mean of `service_s`, or the queue has no end.
        count: requests to play through.
        seed: of the moments and of the order.
    """
    chance = random.Random(seed)  # noqa: S311  # a repeatable load, not a secret
    work_s = chance.sample(service_s, len(service_s))
    free_at = [0.0] * servers
    taken, now = [], 0.0
    for took in itertools.islice(itertools.cycle(work_s), count):
        now += chance.expovariate(rate)
        done = max(now, heapq.heappop(free_at)) + took
        heapq.heappush(free_at, done)
        taken.append(done - now)
    return taken


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
        "queue_of_equal_photos": steadiness(sojourn_s([mean_s], servers=servers, rate=rate, count=count)),
    }
