"""The ideal queue compared with queueing theory."""

import math
import random
import statistics

import pytest

from benchmarks.ideal import references, sojourn_s, steadiness

COUNT = 50_000


def test_a_single_request_takes_its_service_time() -> None:
    assert sojourn_s([0.5], servers=1, rate=1e-6, count=3) == pytest.approx([0.5] * 3)


def test_equal_requests_follow_pollaczek_khinchine() -> None:
    load = 0.7
    taken = sojourn_s([1.0], servers=1, rate=load, count=COUNT)
    assert statistics.fmean(taken) == pytest.approx(1 + load / (2 * (1 - load)), rel=0.05)


def test_exponential_requests_have_an_exponential_tail() -> None:
    rng = random.Random(3)  # noqa: S311  # reproducible
    service_s = [rng.expovariate(1.0) for _ in range(COUNT)]
    found = steadiness(sojourn_s(service_s, servers=1, rate=0.5, count=COUNT))
    assert found["p50_ms"] == pytest.approx(2000 * math.log(2), rel=0.05)
    assert found["p99_over_p50"] == pytest.approx(math.log(100) / math.log(2), rel=0.05)


def test_two_servers_wait_less_than_one_at_the_same_load() -> None:
    one = statistics.fmean(sojourn_s([1.0], servers=1, rate=0.7, count=COUNT))
    two = statistics.fmean(sojourn_s([1.0], servers=2, rate=1.4, count=COUNT))
    assert 1 < two < one


def test_references_separate_the_effects_of_photos_and_arrivals() -> None:
    found = references([0.01] * 9 + [0.1], servers=2, rate=70.0, count=20_000)
    assert found["load"] == pytest.approx(0.665)
    assert found["alone"] == {"p50_ms": 10.0, "p99_ms": 100.0, "p99_over_p50": 10.0}
    assert found["queue"]["p99_ms"] > found["alone"]["p99_ms"]
    assert found["queue_of_equal_photos"]["p99_over_p50"] < found["queue"]["p99_over_p50"]
