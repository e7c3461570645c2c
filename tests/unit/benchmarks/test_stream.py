"""The stream benchmark: frames, results, rate and latencies."""

import pytest

from benchmarks.stream import FrameResult, summary
from tests.unit.benchmarks.conftest import Measure


def test_metrics_reveal_a_growing_queue() -> None:
    results = [FrameResult(0.05 + number / 1000, 1, 3) for number in range(200)]
    found = summary(results, 10.0)
    assert found["frames_per_s"] == 20.0
    assert found["latency_p50_ms"] == pytest.approx(150)
    assert found["latency_p99_ms"] == pytest.approx(248)
    assert found["latency_p50_last_tenth_ms"] - found["latency_p50_first_tenth_ms"] == pytest.approx(180)
    assert (found["frames"], found["frames_with_a_face"], found["dropped"]) == (200, 200, 3)


@pytest.mark.timeout(240)
def test_a_short_run_writes_the_metrics(measure: Measure) -> None:
    found = measure("stream", "--seconds", 1)
    assert found["frames"] >= 1
    assert found["frames_per_s"] == pytest.approx(found["frames"], abs=0.01)
    assert 0 < found["latency_p50_ms"] <= found["latency_p99_ms"]
    assert found["dropped"] == 0, "two frames in flight do not replace each other"
    assert (found["detector"], found["model"]) == ("builtin", "tiny.test")
