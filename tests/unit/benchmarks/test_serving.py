"""The benchmark of the service: its results, and the ideal queue compared with queueing theory."""

from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from benchmarks import serving
from benchmarks.serving import ideal_s
from tests.support import encoded, gradient_image
from tests.unit.benchmarks.conftest import Measure


def test_the_benchmark_writes_all_metrics(measure: Measure, tmp_path: Path) -> None:
    for step in range(4):
        (tmp_path / f"{step}.jpg").write_bytes(encoded(gradient_image(120 + 20 * step, 100), "JPEG"))
    results = measure("serving", "--photos", tmp_path, "--rounds", 1, "--passes", 2, "--steady", 10)
    for name in ("efficiency", "requests_per_s", "cpu_efficiency"):
        assert results[name] > 0, name
    assert results["cpu_ms_per_request"] > results["load_cpu_ms_per_request"] > 0
    assert 0 < results["busy_share"] <= 1.1, "more than all cores is a mistake in the sum"
    assert 0 < results["p50_ms"] <= results["p99_ms"]
    assert (results["provider"], results["detector"]) == ("CPUExecutionProvider", "builtin")


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
    results = serving.measure(tmp_path, rounds=1, passes=1, steady=1)
    assert results["p99_over_ideal"] == over_ideal
    assert (results["ideal_p99_ms"] is None) == (over_ideal is None)


def test_an_ideal_queue_of_equal_requests_follows_pollaczek_khinchine() -> None:
    load = 0.7
    one, two = (ideal_s([1.0], servers=servers, rate=load, count=50_000) for servers in (1, 2))
    assert sum(one) / len(one) == pytest.approx(1 + load / (2 * (1 - load)), rel=0.05)
    assert sum(two) < sum(one)
