"""The ideal queue with which the benchmark of the service is compared, against queueing theory."""

from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks import serving
from benchmarks.serving import ideal_s


@pytest.mark.parametrize(("photo_s", "over_ideal"), [(0.001, pytest.approx(10, rel=0.02)), (2.0, None)])
def test_the_p99_is_compared_with_an_ideal_queue_unless_it_cannot_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photo_s: float, over_ideal: object
) -> None:
    (tmp_path / "0.jpg").touch()
    bare = {"photos_per_s": 1.0, "photo_s": [photo_s], "cpu_ms": 1.0, "cores": 2}
    load = {"statuses": {"200": 1}, "requests": 1, "requests_per_s": 2.0, "seconds": 1.0, "cpu_s": 0.1}
    load |= {"p50_ms": 9.0, "p99_ms": 10.0}
    running = Mock(ready=defaultdict(str), **{"cpu_s.side_effect": [0.0, 0.1]})
    monkeypatch.setattr(serving, "results_of", lambda module, *_: bare if module == "serving" else load)
    monkeypatch.setattr(serving, "service", lambda _: nullcontext(running))
    results = serving.measure(tmp_path, rounds=1, passes=1, steady=1, overload_s=1, clients=99)
    assert results["p99_over_ideal"] == over_ideal
    assert (results["ideal_p99_ms"] is None) == (over_ideal is None)
    assert results["overload"]["goodput"] == 1


def test_an_ideal_queue_of_equal_requests_follows_pollaczek_khinchine() -> None:
    load = 0.7
    one, two = (ideal_s([1.0], servers=servers, rate=load, count=50_000) for servers in (1, 2))
    assert sum(one) / len(one) == pytest.approx(1 + load / (2 * (1 - load)), rel=0.05)
    assert sum(two) < sum(one)
