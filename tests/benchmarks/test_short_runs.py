"""Short runs of the benchmarks, whose results are consistent; an ideal queue, compared with queueing theory."""

from pathlib import Path

import pytest

from benchmarks.serving import ideal_s
from tests.benchmarks.conftest import Measure
from tests.support import ROOT, encoded, gradient_image


@pytest.mark.slow
def test_labeling(measure: Measure) -> None:
    results = measure("labeling", "--count", 6, "--rounds", 1)
    assert results["efficiency"] == pytest.approx(results["images_per_s"] / results["bare_images_per_s"])
    assert results["faces"] == results["images"] == 6
    memory = measure("labeling_memory", ROOT / "samples" / "photos")
    assert memory["peak_rss_mb"] >= memory["rss_mb_end"] > 20


@pytest.mark.slow
def test_other_programs(measure: Measure) -> None:
    results = measure("neighbors", "--count", 3, "--rounds", 1)
    assert list(results["programs"]) == ["Mien as cloned"], "those that are not installed are left out"
    assert results["programs"]["Mien as cloned"]["photos_with_face"] == 3


@pytest.mark.slow
def test_serving(measure: Measure, tmp_path: Path) -> None:
    for step in range(4):
        (tmp_path / f"{step}.jpg").write_bytes(encoded(gradient_image(120 + 20 * step, 100), "JPEG"))
    short = ("--rounds", 1, "--passes", 2, "--steady", 10, "--overload-s", 1)
    results = measure("serving", "--photos", tmp_path, *short)
    assert min(results[name] for name in ("efficiency", "requests_per_s", "cpu_efficiency")) > 0
    assert results["cpu_ms_per_request"] > results["load_cpu_ms_per_request"] > 0
    assert 0 < results["busy_share"] <= 1.1, "more than all cores is a mistake in the sum"
    assert 0 < results["p50_ms"] <= results["p99_ms"]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_stream(measure: Measure) -> None:
    found = measure("stream", "--seconds", 1)
    assert found["frames_per_s"] == pytest.approx(found["frames"], abs=0.01)
    assert 0 < found["latency_p50_ms"] <= found["latency_p99_ms"]
    assert found["dropped"] == 0, "two frames in flight do not replace each other"


def test_an_ideal_queue_of_equal_requests_follows_pollaczek_khinchine() -> None:
    load = 0.7
    one, two = (ideal_s([1.0], servers=servers, rate=load, count=50_000) for servers in (1, 2))
    assert sum(one) / len(one) == pytest.approx(1 + load / (2 * (1 - load)), rel=0.05)
    assert sum(two) < sum(one)
