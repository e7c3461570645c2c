"""The detection benchmark."""

import json
from pathlib import Path

import pytest

from benchmarks import detection
from tests.support import folder_from_environment, sample_photo


def test_the_sample_photo_is_found_in_every_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MIEN_MODELS_DIR", str(folder_from_environment("MIEN_MODELS_DIR")))
    (tmp_path / "photo.jpg").write_bytes(sample_photo().read_bytes())
    monkeypatch.setattr(detection, "SIZES", ((160, 160),))
    out = tmp_path / "out.json"
    assert detection.main(["--photos", str(tmp_path), "--repeats", "2", "--json", str(out)]) == 0
    results = json.loads(out.read_text(encoding="utf-8"))
    assert json.loads(capsys.readouterr().out) == results
    assert set(results["runners"]["160x160"]) == {"onnxruntime_ms", "opencv_ms"}
    for turn in ("0", "90", "180", "270"):
        for images in ("found_by_turn", "close_ups_by_turn"):
            row = results[images][turn]
            del row["ms_median"]
            assert row == {"reference": 1, "found": 1, "right_roll": 1, "right_label": 1, "others": 0}
