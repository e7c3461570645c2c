"""Accuracy on degraded faces: strengths, limits, and softening."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mien.data.contract import Array
from mien.data.quality import measure
from mien.models.manifest import read_manifest
from mien.training import robustness
from mien.training.metrics import ece
from mien.training.release import conditions
from mien.training.release.conditions import STRENGTHS, Step, degrade, fit_softening, measure_conditions
from mien.training.robustness import corrupt
from tests.support.data_sets import draw_face
from tests.support.training import drawn_faces, valid_faces

FACE = draw_face("happiness", 3)[0]


def degraded(crop: Array, condition: str, strength: float, *, seed: int) -> Array:
    return degrade(crop, condition, strength, seed=seed)[0]


def test_a_stronger_corruption_changes_more_and_the_same_seed_changes_alike() -> None:
    for change, of_names in ((corrupt, robustness.STRENGTHS), (degraded, STRENGTHS)):
        for name, strengths in of_names.items():
            mild, strong = (change(FACE, name, strengths[step], seed=1).astype(int) for step in (0, -1))
            changes = [float(np.abs(crop - FACE).mean()) for crop in (mild, strong)]
            assert 0 < changes[0] < changes[1] or name == conditions._OBJECTS, name
            assert np.array_equal(strong, change(FACE, name, strengths[-1], seed=1)), name


@pytest.mark.parametrize("yaw", [-45, 20, 60])
def test_a_turned_face_has_the_landmarks_of_its_yaw(yaw: float) -> None:
    _, landmarks = conditions.turned(FACE, yaw)
    assert measure(FACE, landmarks).yaw_degrees == pytest.approx(yaw, abs=8)


def test_softening_is_fitted_to_blurred_faces_that_are_too_sure() -> None:
    rng = np.random.default_rng(0)
    labels = np.zeros(2000, int)
    faces = {blur: conditions.Quality(90, blur, 0, 0, 0.5, 0) for blur in (0.5, 4.0)}

    def step(blur: float, accuracy: float) -> Step:
        top = np.where(rng.random(len(labels)) < accuracy, 0, 1)
        return Step("blur", blur, np.where(np.eye(7)[top] == 1, 0.9, 0.1 / 6), [faces[blur]] * len(labels))

    steps = [step(0.5, 0.9), step(4.0, 0.5)]
    softening = fit_softening(steps, labels, np.arange(len(labels)) % 2 == 0)
    assert softening.per_px > 0.2
    blurred = steps[1].probabilities
    soft = np.stack([softening.soften(row, faces[4.0]) for row in blurred])
    assert ece(soft, labels) < 0.05
    assert ece(blurred, labels) > 0.3
    assert np.array_equal(soft.argmax(axis=1), blurred.argmax(axis=1))
    assert np.array_equal(softening.soften(blurred[0], faces[0.5]), blurred[0])


def test_all_conditions_of_a_model_are_measured(
    artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that looks at the brightness only: it fails in the dark, and nowhere else."""
    monkeypatch.setattr(conditions, "STRENGTHS", STRENGTHS)  # all of them
    faces = valid_faces(drawn_faces(tmp_path / "faces", train=1, valid=3))
    faces = replace(faces, labels=np.zeros(len(faces), int))
    manifest = read_manifest(artifact).model_copy(update={"confidence_threshold": 1.0})

    def classify(crops: np.ndarray) -> np.ndarray:
        bright = crops.mean(axis=(1, 2, 3)) > 20
        return np.eye(7)[np.where(bright, 0, 1)] * 9.0

    cross_fitted = manifest.probabilities(classify(faces.crops), "balanced")
    found = measure_conditions(manifest, classify, faces, cross_fitted)
    assert measure_conditions(found, classify, faces, cross_fitted) == found
    measured = found.conditions
    assert measured is not None
    assert set(measured.conditions) == set(STRENGTHS)
    assert measured.accuracy.value == 1
    limit = measured.conditions["brightness"].minus_5
    assert limit is not None
    assert 0.05 < limit.value < 0.12
    assert measured.conditions["roll, degrees"].minus_5 is None
    assert {"dark", "covered", "ambiguous"} <= set(measured.reasons)
    assert "small" not in measured.reasons
    dark = measured.reasons["dark"]
    assert dark.accuracy.value < 0.5
    assert dark.detected is not None
    assert dark.detected.value > 0.9
