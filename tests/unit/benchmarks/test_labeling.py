"""The labeling benchmark: its results and their consistency."""

import json
from pathlib import Path

import pytest

from benchmarks import labeling
from tests.support import tiny_artifact


def test_the_benchmark_writes_efficiency_rate_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIEN_MODEL", str(tiny_artifact(tmp_path / "tiny.test")))
    monkeypatch.setenv("MIEN_DETECTOR", "builtin")
    out = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", ["labeling", "--count", "6", "--rounds", "1", "--json", str(out)])
    labeling.main()
    results = json.loads(out.read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out) == results
    assert results["efficiency"] == pytest.approx(results["images_per_s"] / results["bare_images_per_s"])
    assert results["faces"] == results["images"] == 6
    assert results["peak_rss_mb"] >= results["rss_mb_end"] > 20
    assert set(results["stage_ms"]) == {"read", "decode", "detect", "align", "classify", "write"}
