"""Benchmarks: short runs, whose results are consistent; scores on labeled photos; and the reason `covered`."""

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from benchmarks import neighbors_fer, photos
from benchmarks.covered import PARTS, Faces, detect_faces, fit, measure_covered
from benchmarks.photos import FoundFace, LabeledFace
from mien.data.contract import LABELS
from mien.data.quality import COVER_FILE, COVERED_LIMIT, cover_features
from tests.support import ROOT, encoded, environment_of, folder_from_environment, gradient_image, output_of
from tests.support.data_sets import draw_face


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
    short = ("--rounds", 1, "--passes", 2, "--steady", 10, "--overload-s", 1)
    results = measure(artifact, "serving", "--photos", tmp_path, *short)
    assert min(results[name] for name in ("efficiency", "requests_per_s", "cpu_efficiency")) > 0
    assert results["cpu_ms_per_request"] > results["load_cpu_ms_per_request"] > 0
    assert 0 < results["busy_share"] <= 1.1, "more than all cores is a mistake in the sum"
    assert 0 < results["p50_ms"] <= results["p99_ms"]


def test_programs_are_scored_on_the_faces_that_all_of_them_find(tmp_path: Path) -> None:
    labels = "file,face_x,face_y,label,second,certainty\n"
    labels += "a.jpg,50,50,fear,,certain\nb.jpg,50,50,anger,,certain\nb.jpg,50,50,neutral,anger,arguable\n"
    (tmp_path / "labels.csv").write_text(labels, encoding="utf-8")
    fer = {"box": [40, 40, 20, 20], "emotions": {"fear": 0.5, "angry": 0.499, "happy": 0.001}}
    neighbors_fer.write_predictions(tmp_path / "other.jsonl", [tmp_path / "a.jpg", tmp_path / "b.jpg"], [[fer], []])
    labeled = photos.read_labels(tmp_path)
    assert labeled == [LabeledFace("a.jpg", 50, 50, "fear"), LabeledFace("b.jpg", 50, 50, "anger")]
    large = FoundFace((0, 0, 140, 140), {"anger": 0.7})
    programs = {"both": lambda _: [large], "other": photos.predicted_faces(tmp_path / "other.jsonl")}
    results = photos.measure(labeled, programs)
    assert [(row["found"], row["scored"]) for row in results.values()] == [(2, 1), (1, 1)]
    assert [row["accuracy"].value for row in results.values()] == [0, 1]
    assert results["other"]["nll"].value == pytest.approx(0.693, abs=1e-3)


def test_few_masked_faces_among_many_others_are_told_and_the_limit_is_of_other_faces_than_the_fit() -> None:
    free = [draw_face(LABELS[seed % 7], seed)[0] for seed in range(120)]
    masked = []
    for crop in (draw_face(LABELS[seed % 7], 500 + seed)[0] for seed in range(20)):
        covered = crop.copy()
        cv2.rectangle(covered, (18, 66), (94, 111), (200, 220, 230), -1)
        masked.append(covered)
    parts = np.array([PARTS[max(0, number % 5 - 2)] for number in range(120)])
    sources = [Faces("masks", True, masked, parts[:20]), Faces("faces", False, free, parts)]
    weights, bias = fit(sources, np.random.default_rng(0))
    limit = [crop for crop, part in zip(free, parts, strict=True) if part == "limit"]
    assert np.mean([cover_features(crop) @ weights + bias > COVERED_LIMIT for crop in limit]) <= 0.05  # one of 24
    results = measure_covered(sources, weights, bias, np.random.default_rng(1))
    assert results["masks"] == {"faces": 4, "covered": 1.0}
    assert results["faces"]["faces"] == 24
    assert results["faces"]["covered"] <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("archive", "masked"), [("masks/masks.zip", True), ("detector/people.zip", False)])
def test_the_released_weights_find_real_masks_and_few_other_faces(archive: str, masked: bool, tmp_path: Path) -> None:
    path = folder_from_environment("MIEN_DATA_DIR") / archive
    if not path.is_file():
        pytest.skip(f"{path} is not there: covered is not measured on real faces")
    with zipfile.ZipFile(path) as photos:
        photos.extractall(tmp_path)
    folder = tmp_path / ("masks" if masked else "faces")
    fitted = json.loads(COVER_FILE.read_text(encoding="utf-8"))
    sources = list(detect_faces(folder, ("test",), masked=masked))
    rng = np.random.default_rng(0)
    results = measure_covered(sources, np.array(fitted["weights"], np.float32), fitted["bias"], rng)
    for faces in sources:
        share = results[faces.name]["covered"]
        assert share >= 0.8 if masked else share <= 0.03, f"{faces.name}: {share}"
