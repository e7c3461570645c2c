"""Accuracy on degraded faces: strengths, limits with their intervals, softening, and the table of corruptions."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from mien.data.contract import Array
from mien.data.quality import measure
from mien.models.manifest import read_manifest
from mien.training import evaluate, robustness
from mien.training.cli import main
from mien.training.metrics import ece
from mien.training.release import conditions
from mien.training.release.conditions import STRENGTHS, Step, degrade, fit_softening, measure_conditions
from mien.training.robustness import corrupt
from tests.support.data_sets import draw_face
from tests.support.training import drawn_faces, valid_faces

FACE = draw_face("happiness", 3)[0]


def degraded(crop: Array, condition: str, strength: float, *, seed: int) -> Array:
    return degrade(crop, condition, strength, seed=seed)[0]


@pytest.mark.parametrize(
    ("change", "name", "strengths"),
    [
        *((corrupt, name, strengths) for name, strengths in robustness.STRENGTHS.items()),
        *((degraded, name, strengths) for name, strengths in STRENGTHS.items()),
    ],
)
def test_a_stronger_corruption_changes_more_and_the_same_seed_changes_alike(
    change: Callable[..., Array], name: str, strengths: tuple[float, ...]
) -> None:
    crops = [change(FACE, name, strength, seed=1) for strength in strengths]
    assert {(crop.shape, crop.dtype.name) for crop in crops} == {((112, 112, 3), "uint8")}
    changes = [float(np.abs(crop.astype(int) - FACE).mean()) for crop in crops]
    assert changes[0] > 0
    assert name == conditions._OBJECTS or changes[0] < changes[-1]
    assert np.array_equal(crops[1], change(FACE, name, strengths[1], seed=1))


@pytest.mark.parametrize(("corruption", "row"), [("eyes covered, share", 42), ("mouth covered, share", 85)])
def test_an_occlusion_covers_what_it_names(corruption: str, row: int) -> None:
    changed = (corrupt(FACE, corruption, 0.2, seed=0) != FACE).any(axis=(1, 2))
    assert changed[row]
    assert not changed[row + 20]
    assert not changed[row - 20]


def test_the_command_measures_every_strength_and_draws_them(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Mock(wraps=evaluate.open_graph)
    monkeypatch.setattr(evaluate, "open_graph", opening)
    monkeypatch.setattr(robustness, "STRENGTHS", {name: of[::4] for name, of in robustness.STRENGTHS.items()})
    root, out, plot = drawn_faces(tmp_path / "faces", train=1, valid=2), tmp_path / "all.json", tmp_path / "all.png"
    arguments = ["evaluate", "--artifact", str(artifact), "--data", f"folders={root}", "--corruptions", "--faces", "10"]
    assert main([*arguments, "--json", str(out), "--plot", str(plot)]) == 0
    assert opening.call_count == 1
    rows = json.loads(out.read_text(encoding="utf-8"))["corruptions"]
    assert len(rows) == 1 + 2 * 10
    assert all(row["accuracy"]["low"] <= row["accuracy"]["value"] <= row["accuracy"]["high"] for row in rows)
    assert "10 faces" in capsys.readouterr().out
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize("yaw", [-45, 20, 60])
def test_a_turned_face_has_the_landmarks_of_its_yaw(yaw: float) -> None:
    _, landmarks = conditions.turned(FACE, yaw)
    assert measure(FACE, landmarks).yaw_degrees == pytest.approx(yaw, abs=8)


def test_a_limit_is_interpolated_where_accuracy_falls_and_missing_where_it_does_not() -> None:
    right = np.array([[place < hits for place in range(100)] for hits in (90, 88, 80, 60)])
    limit = conditions._crossing([0.0, 1.0, 2.0, 3.0], right, 0.05)
    assert limit is not None
    assert limit.value == pytest.approx(1 + 3 / 8)
    assert limit.low < limit.value < limit.high
    assert conditions._crossing([0.0, 1.0, 2.0, 3.0], right, 0.5) is None


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
