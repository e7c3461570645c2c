"""Simulation of an ideal queue, as a lower bound for the latency of the service.

Requests arrive at random times (Poisson) at as many servers as there are cores, first come, first served, with the
measured time of each photo and no overhead. Latency beyond this is caused by the service; the rest is caused by the
photos and the arrivals.
"""

import heapq
import itertools
import random
from collections.abc import Sequence


def sojourn_s(
    service_s: Sequence[float],
    *,
    servers: int,
    rate: float,
    count: int,
) -> list[float]:
    """Seconds that each of `count` requests waits and is served, in the order of service.

    Args:
        service_s: seconds of work, cycled in a shuffled order, as the load generator sends photos.
        servers: number of parallel servers, with one request each.
        rate: mean requests per second; less than `servers` / mean of `service_s`, otherwise the queue grows forever.
        count: number of requests.
    """
    rng = random.Random(0)  # noqa: S311  # not for cryptography
    order = rng.sample(service_s, len(service_s))
    free_at, taken, now = [0.0] * servers, [], 0.0
    for work_s in itertools.islice(itertools.cycle(order), count):
        now += rng.expovariate(rate)
        done = max(now, heapq.heappop(free_at)) + work_s
        heapq.heappush(free_at, done)
        taken.append(done - now)
    return taken
