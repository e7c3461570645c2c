"""The GPU benchmark: its metrics on the CPU at small sizes, and its exit without a GPU."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu
from mien.app.inference.classifier import Classifier
from mien.app.inference.runtime import sessions
from tests.support import tiny_artifact


def test_all_metrics_are_present_and_finite(tmp_path: Path) -> None:
    classifier = Classifier(tiny_artifact(tmp_path / "tiny.test"), device="cpu", threads=1)
    found = gpu.measure(classifier, batch=4, concurrency=2)
    assert (found["provider"], found["graph_sizes"]) == (sessions.CPU, ())
    for name in ("batching_gain", "faces_per_s", "ms_per_batch", "sequential_faces_per_s"):
        assert 0 < found[name] < np.inf, name


def test_without_a_gpu_the_benchmark_exits_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "cuda_obstacle", lambda: "no GPU")
    monkeypatch.setattr("sys.argv", ["gpu", "--json", str(tmp_path / "gpu.json")])
    with pytest.raises(SystemExit, match=r"nothing was measured\. device cuda: no GPU"):
        gpu.main()
    assert not (tmp_path / "gpu.json").exists()
