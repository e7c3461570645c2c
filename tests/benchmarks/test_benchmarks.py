"""Benchmarks: short runs, whose results are consistent, and scores on labeled photos."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import neighbors_fer, photos
from benchmarks.photos import FoundFace, LabeledFace
from tests.support import ROOT, encoded, environment_of, gradient_image, output_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("labeling", ("--count", 6, "--rounds", 1)),
        ("serving", ("--photos", "PHOTOS", "--rounds", 1, "--passes", 2, "--steady", 10)),
        ("stream", ("--seconds", 1)),
        ("scaling", ("--photos", "PHOTOS", "--cores", 1, "--count", 5, "--requests", 8, "--rounds", 1)),
    ],
)
def test_short_runs_give_consistent_results(
    artifact: Path, tmp_path: Path, module: str, options: tuple[object, ...]
) -> None:
    for step in range(4):
        (tmp_path / f"{step}.jpg").write_bytes(encoded(gradient_image(120 + 20 * step, 100), "JPEG"))
    chosen = [str(tmp_path) if option == "PHOTOS" else str(option) for option in options]
    environment = environment_of(model=artifact, device="cpu", detector="builtin", detect_rotated=False)
    output = output_of(sys.executable, "-m", f"benchmarks.{module}", *chosen, cwd=ROOT, env=environment)
    results: dict[str, Any] = json.loads(output)
    if module == "labeling":
        assert results["efficiency"] == pytest.approx(results["images_per_s"] / results["bare_images_per_s"])
        assert results["faces"] == results["images"] == 6
    elif module == "scaling":
        (result,) = results["results"]
        assert result["label"]["efficiency"] == result["service"]["efficiency"] == 1
        assert result["label"]["images_per_s"] > 0 < result["service"]["requests_per_s"]
    else:
        rate, prefix = ("frames_per_s", "latency_") if module == "stream" else ("efficiency", "")
        assert results[rate] > 0 < results[f"{prefix}p50_ms"] <= results[f"{prefix}p99_ms"]


def test_programs_are_scored_on_the_faces_that_all_of_them_find(tmp_path: Path) -> None:
    labels = "file,face_x,face_y,label,second,certainty\n"
    labels += "a.jpg,50,50,fear,,certain\nb.jpg,50,50,anger,,certain\nb.jpg,50,50,neutral,anger,arguable\n"
    (tmp_path / "labels.csv").write_text(labels, encoding="utf-8")
    fer = {"box": [40, 40, 20, 20], "emotions": {"fear": 0.5, "angry": 0.499, "happy": 0.001}}
    neighbors_fer.write_predictions(tmp_path / "other.jsonl", [tmp_path / "a.jpg", tmp_path / "b.jpg"], [[fer], []])
    labeled = photos.read_labels(tmp_path)
    assert labeled == [LabeledFace("a.jpg", 50, 50, "fear"), LabeledFace("b.jpg", 50, 50, "anger")]
    large = FoundFace((0, 0, 140, 140), {"anger": 0.7}, uncertain=False)
    programs = {"both": lambda _: [large], "other": photos.predicted_faces(tmp_path / "other.jsonl")}
    results = photos.measure(labeled, programs)
    assert [(row["found"], row["scored"]) for row in results.values()] == [(2, 1), (1, 1)]
    assert [row["accuracy"].value for row in results.values()] == [0, 1]
    assert results["both"]["kept"].value == 1
    assert results["both"]["accuracy_of_kept"].value == 0
    assert results["other"]["kept"] is None
    assert "both" in photos.table(results)
    assert results["other"]["nll"].value == pytest.approx(0.693, abs=1e-3)
