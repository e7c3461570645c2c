"""`python -m benchmarks.serving` runs and writes its results."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support import ROOT, encoded, gradient_image


def test_the_benchmark_writes_all_metrics(artifact: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for step in range(4):
        (photos / f"{step}.jpg").write_bytes(encoded(gradient_image(120 + 20 * step, 100), "JPEG"))
    command = [sys.executable, "-m", "benchmarks.serving", "--photos", str(photos), "--json", str(tmp_path / "f.json")]
    environment = os.environ | {"MIEN_MODEL": str(artifact), "MIEN_DEVICE": "cpu", "MIEN_DETECTOR": "builtin"}
    done = subprocess.run(
        [*command, "--rounds", "1", "--passes", "2", "--steady", "10"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "f.json").read_text())
    assert results["efficiency"] > 0
    assert results["requests_per_s"] > 0
    assert results["cpu_efficiency"] > 0
    assert results["cpu_ms_per_request"] > results["load_cpu_ms_per_request"] > 0
    assert 0 < results["busy_share"] <= 1.1, "more than all cores is a mistake in the sum"
    assert results["p99_over_ideal"] > 0
    assert results["ideal_p99_ms"] > 0
    assert 0 < results["p50_ms"] <= results["p99_ms"]
    assert (results["provider"], results["detector"]) == ("CPUExecutionProvider", "builtin")
