"""The stream benchmark: frames, results, rate and latencies."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.stream import FrameResult, summary
from tests.support import tiny_artifact

ROOT = Path(__file__).resolve().parents[3]


def test_metrics_reveal_a_growing_queue() -> None:
    results = [FrameResult(0.05 + number / 1000, 1, 3) for number in range(200)]
    found = summary(results, 10.0)
    assert found["frames_per_s"] == 20.0
    assert found["latency_p50_ms"] == pytest.approx(150)
    assert found["latency_p99_ms"] == pytest.approx(248)
    assert found["latency_p50_last_tenth_ms"] - found["latency_p50_first_tenth_ms"] == pytest.approx(180)
    assert (found["frames"], found["frames_with_a_face"], found["dropped"]) == (200, 200, 3)


@pytest.mark.timeout(240)
def test_a_short_run_writes_the_metrics(tmp_path: Path) -> None:
    out = tmp_path / "out" / "stream.json"
    environment = {
        "MIEN_MODEL": str(tiny_artifact(tmp_path / "tiny.test")),
        "MIEN_DEVICE": "cpu",
        "HOME": str(tmp_path),
    }
    environment |= {"MIEN_DETECTOR": "builtin", "MIEN_DETECT_ROTATED": "false", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "benchmarks.stream", "--seconds", "1", "--json", str(out)]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["frames"] >= 1
    assert found["frames_per_s"] == pytest.approx(found["frames"], abs=0.01)
    assert 0 < found["latency_p50_ms"] <= found["latency_p99_ms"]
    assert found["dropped"] == 0, "two frames in flight do not replace each other"
    assert (found["detector"], found["model"]) == ("builtin", "tiny.test")
