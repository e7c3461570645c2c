"""Short runs of the benchmarks: their results are consistent with each other."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu
from mien.app.inference.classifier import Classifier
from mien.app.inference.runtime import sessions
from mien.app.settings import Settings
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


def test_gpu_at_small_sizes_on_the_cpu(artifact: Path) -> None:
    classifier = Classifier(Settings(model=artifact, device="cpu", threads=1))
    found = gpu.measure(classifier, "cpu", batch=4, concurrency=2, matmul_size=32)
    assert (found["provider"], found["graph_sizes"]) == (sessions.CPU, ())
    for name in ("batching_gain", "faces_per_s", "ms_per_batch", "matmul_tflop_per_s", "sequential_faces_per_s"):
        assert 0 < found[name] < np.inf, name
