"""Benchmarks: short runs, whose results are consistent, and scores on labeled photos."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import neighbors_fer, photos
from benchmarks.photos import FoundFace, LabeledFace
from tests.support import ROOT, encoded, environment_of, gradient_image, output_of


def measure(artifact: Path, module: str, *arguments: object) -> dict[str, Any]:
    """Run a benchmark with a model; returns the results, which it prints."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
    environment = environment_of(model=artifact, device="cpu", detector="builtin", detect_rotated=False)
    results: dict[str, Any] = json.loads(output_of(*command, cwd=ROOT, env=environment))
    return results


@pytest.mark.slow
def test_labeling(artifact: Path) -> None:
    results = measure(artifact, "labeling", "--count", 6, "--rounds", 1)
    assert results["efficiency"] == pytest.approx(results["images_per_s"] / results["bare_images_per_s"])
    assert results["faces"] == results["images"] == 6


@pytest.mark.slow
def test_serving(artifact: Path, tmp_path: Path) -> None:
    for step in range(4):
        (tmp_path / f"{step}.jpg").write_bytes(encoded(gradient_image(120 + 20 * step, 100), "JPEG"))
    short = ("--rounds", 1, "--passes", 2, "--steady", 10)
    results = measure(artifact, "serving", "--photos", tmp_path, *short)
    assert min(results[name] for name in ("efficiency", "requests_per_s", "cpu_ms_per_request")) > 0
    assert 0 < results["p50_ms"] <= results["p99_ms"]


@pytest.mark.slow
def test_streaming(artifact: Path) -> None:
    results = measure(artifact, "stream", "--seconds", 1)
    assert results["frames"] == results["frames_with_a_face"] == pytest.approx(results["frames_per_s"])
    assert 0 < results["latency_p50_ms"] <= results["latency_p99_ms"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="pins processes to cores")
def test_scaling(artifact: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(gradient_image(), "JPEG"))
    short = ("--photos", tmp_path, "--cores", 1, "--count", 5, "--requests", 8, "--rounds", 1)
    (result,) = measure(artifact, "scaling", *short)["results"]
    assert result["label"]["efficiency"] == result["service"]["efficiency"] == 1
    assert result["label"]["images_per_s"] > 0 < result["service"]["requests_per_s"]


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
