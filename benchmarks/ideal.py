"""Simulation of an ideal queue, as a lower bound for the latency of the service.

Requests arrive at random times (Poisson) at as many servers as there are cores, first come, first served, with the
measured time of each photo and no overhead. Latency beyond this is caused by the service; the rest is caused by the
photos and the arrivals.
"""

import heapq
import itertools
import random
from collections.abc import Sequence
from typing import Any

from benchmarks.load import percentile


def sojourn_s(
    service_s: Sequence[float],
    *,
    servers: int,
    rate: float,
    count: int,
    seed: int = 0,
) -> list[float]:
    """Seconds that each of `count` requests waits and is served, in the order of service.

    Args:
        service_s: seconds of work, cycled in an order shuffled by `seed`, as the load generator sends photos.
        servers: number of parallel servers, with one request each.
        rate: mean requests per second; less than `servers` / mean of `service_s`, otherwise the queue grows forever.
        count: number of requests.
        seed: for arrival times and order.
    """
    rng = random.Random(seed)  # noqa: S311  # not for cryptography
    order = rng.sample(service_s, len(service_s))
    free_at, taken, now = [0.0] * servers, [], 0.0
    for work_s in itertools.islice(itertools.cycle(order), count):
        now += rng.expovariate(rate)
        done = max(now, heapq.heappop(free_at)) + work_s
        heapq.heappush(free_at, done)
        taken.append(done - now)
    return taken


def steadiness(taken_s: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds, and their ratio."""
    p50, p99 = (percentile(taken_s, share) for share in (0.5, 0.99))
    return {"p50_ms": round(p50 * 1000, 2), "p99_ms": round(p99 * 1000, 2), "p99_over_p50": round(p99 / p50, 2)}


def references(service_s: Sequence[float], *, servers: int, rate: float, count: int = 100_000) -> dict[str, Any]:
    """References for a measured p99: no queue, the ideal queue, and the ideal queue of equal photos."""
    mean_s = sum(service_s) / len(service_s)
    return {
        "load": round(rate * mean_s / servers, 3),
        "alone": steadiness(service_s),
        "queue": steadiness(sojourn_s(service_s, servers=servers, rate=rate, count=count)),
        "queue_of_equal_photos": steadiness(sojourn_s([mean_s], servers=servers, rate=rate, count=count)),
    }
