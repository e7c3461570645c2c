"""The ideal queue compared with queueing theory."""

import statistics

import pytest

from benchmarks.ideal import sojourn_s


def test_equal_requests_follow_pollaczek_khinchine() -> None:
    load = 0.7
    taken = sojourn_s([1.0], servers=1, rate=load, count=50_000)
    assert statistics.fmean(taken) == pytest.approx(1 + load / (2 * (1 - load)), rel=0.05)
    assert statistics.fmean(sojourn_s([1.0], servers=2, rate=load, count=50_000)) < statistics.fmean(taken)
