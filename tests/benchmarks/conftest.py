"""Short runs of the benchmarks."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT, environment_of, output_of

Measure = Callable[..., dict[str, Any]]


@pytest.fixture
def measure(artifact: Path, tmp_path: Path) -> Measure:
    """Run a benchmark with a tiny model; returns the results, which it prints and writes."""

    def run(module: str, *arguments: object) -> dict[str, Any]:
        out = tmp_path / "out" / "results.json"
        command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments), "--json", str(out)]
        environment = environment_of(model=artifact, device="cpu", detector="builtin", detect_rotated=False)
        results: dict[str, Any] = json.loads(output_of(*command, cwd=ROOT, env=environment))
        assert json.loads(out.read_text(encoding="utf-8")) == results
        return results

    return run
