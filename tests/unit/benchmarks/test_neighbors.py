"""Comparison with other programs: same photos, missing programs skipped, best round reported."""

import sys
from pathlib import Path

import pytest

from benchmarks import neighbors
from tests.unit.benchmarks.conftest import Measure

FAKE = """import json, sys
from pathlib import Path
count = len(list(Path(sys.argv[-1]).glob("*.jpg")))
print("loading")
print(json.dumps({"program": "fake 1.0", "photos_with_face": count, "faces": count, "images_per_s": 5.0}))
"""


def test_absent_neighbors_are_skipped_and_mien_is_measured(measure: Measure) -> None:
    results = measure("neighbors", "--count", 3, "--rounds", 1)
    assert list(results["programs"]) == ["Mien as cloned"]
    mien = results["programs"]["Mien as cloned"]
    assert mien["photos_with_face"] == 3
    assert mien["images_per_s"] > 0


def test_the_last_line_of_a_script_is_its_result_and_the_best_round_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MIEN_DATA_DIR", raising=False)
    script = tmp_path / "fake.py"
    script.write_text(FAKE, encoding="utf-8")
    folder = tmp_path / "photos"
    folder.mkdir()
    assert neighbors.write_photos(folder, 3) == "sample portrait"
    result = neighbors.measure_script([sys.executable, str(script)], folder)
    assert result["faces"] == 3
    rates = iter([5.0, 7.0, 6.0])
    best = neighbors.measure({"fake": lambda _: result | {"images_per_s": next(rates)}}, folder, 3)
    assert best["fake"]["images_per_s"] == 7.0
