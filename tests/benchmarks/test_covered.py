"""The reason `covered`: its fit on faces with and without masks, and what the released weights find."""

import json
import zipfile
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from benchmarks.covered import PARTS, Faces, detect_faces, fit, measure_covered, part_of
from mien.data.contract import LABELS
from mien.data.quality import COVER_FILE, COVERED_LIMIT, cover_features
from tests.support import folder_from_environment
from tests.support.data_sets import draw_face


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


def test_parts_are_of_photos_and_most_are_for_the_fit() -> None:
    counts = Counter(part_of(f"{number:04}.jpg") for number in range(1000))
    assert 550 < counts["fit"] < 650
    assert counts["limit"] + counts["test"] == 1000 - counts["fit"]
    assert abs(counts["limit"] - counts["test"]) < 60


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
