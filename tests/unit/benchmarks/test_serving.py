"""The benchmark of the service: its results, and the ideal queue compared with queueing theory."""

from pathlib import Path

import pytest

from benchmarks.serving import ideal_s
from tests.support import encoded, gradient_image
from tests.unit.benchmarks.conftest import Measure


def test_the_benchmark_writes_all_metrics(measure: Measure, tmp_path: Path) -> None:
    for step in range(4):
        (tmp_path / f"{step}.jpg").write_bytes(encoded(gradient_image(120 + 20 * step, 100), "JPEG"))
    results = measure("serving", "--photos", tmp_path, "--rounds", 1, "--passes", 2, "--steady", 10)
    for name in ("efficiency", "requests_per_s", "cpu_efficiency", "p99_over_ideal", "ideal_p99_ms"):
        assert results[name] > 0, name
    assert results["cpu_ms_per_request"] > results["load_cpu_ms_per_request"] > 0
    assert 0 < results["busy_share"] <= 1.1, "more than all cores is a mistake in the sum"
    assert 0 < results["p50_ms"] <= results["p99_ms"]
    assert (results["provider"], results["detector"]) == ("CPUExecutionProvider", "builtin")


def test_an_ideal_queue_of_equal_requests_follows_pollaczek_khinchine() -> None:
    load = 0.7
    one, two = (ideal_s([1.0], servers=servers, rate=load, count=50_000) for servers in (1, 2))
    assert sum(one) / len(one) == pytest.approx(1 + load / (2 * (1 - load)), rel=0.05)
    assert sum(two) < sum(one)
