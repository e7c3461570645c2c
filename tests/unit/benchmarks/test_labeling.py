"""The labeling benchmarks: their results and their consistency."""

import pytest

from tests.support import ROOT
from tests.unit.benchmarks.conftest import Measure


def test_the_benchmark_writes_efficiency_rate_and_stages(measure: Measure) -> None:
    results = measure("labeling", "--count", 6, "--rounds", 1)
    assert results["efficiency"] == pytest.approx(results["images_per_s"] / results["bare_images_per_s"])
    assert results["faces"] == results["images"] == 6
    assert set(results["stage_ms"]) == {"read", "decode", "detect", "align", "classify", "write"}
    memory = measure("labeling_memory", ROOT / "samples" / "photos")
    assert memory["peak_rss_mb"] >= memory["rss_mb_end"] > 20
