"""Short runs of the benchmarks."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, environment_of

Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def measure(artifact: Path, tmp_path: Path) -> Measure:
    """Run a benchmark with a tiny model; returns the results, which it prints and writes."""

    def run(module: str, *arguments: object) -> dict[str, Any]:
        out = tmp_path / "out" / "results.json"
        command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments), "--json", str(out)]
        environment = environment_of(model=artifact, device="cpu", detector="builtin", detect_rotated=False)
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        results: dict[str, Any] = json.loads(done.stdout)
        assert json.loads(out.read_text(encoding="utf-8")) == results
        return results

    return run
