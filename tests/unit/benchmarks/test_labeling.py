"""The labeling benchmark: its results and their consistency."""

import pytest

from tests.unit.benchmarks.conftest import Measure


def test_the_benchmark_writes_efficiency_rate_and_memory(measure: Measure) -> None:
    results = measure("labeling", "--count", 6, "--rounds", 1)
    assert results["efficiency"] == pytest.approx(results["images_per_s"] / results["bare_images_per_s"])
    assert results["faces"] == results["images"] == 6
    assert results["peak_rss_mb"] >= results["rss_mb_end"] > 20
    assert set(results["stage_ms"]) == {"read", "decode", "detect", "align", "classify", "write"}
