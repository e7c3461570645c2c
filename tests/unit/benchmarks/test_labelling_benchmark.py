"""The labelling benchmark writes the figures that it promises, and they agree with each other."""

import json
from pathlib import Path

import pytest

from benchmarks import labelling
from tests.support import tiny_artefact


def test_it_writes_efficiency_rate_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIEN_MODEL", str(tiny_artefact(tmp_path / "tiny.test")))
    monkeypatch.setenv("MIEN_DETECTOR", "haar")
    out = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", ["labelling", "--count", "6", "--rounds", "1", "--json", str(out)])
    labelling.main()
    figures = json.loads(out.read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out) == figures
    assert figures["efficiency"] == pytest.approx(figures["images_per_s"] / figures["bare_images_per_s"])
    assert figures["faces"] == figures["pictures"] == 6
    assert figures["peak_rss_mb"] >= figures["peak_rss_mb_half"] > 20
    assert set(figures["stage_ms"]) == {"read", "decode", "detect", "align", "classify", "write"}
