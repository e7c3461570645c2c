"""Columns of a face, by their literal names; the row of a long video."""

import tracemalloc
from types import SimpleNamespace
from typing import Any

from mien.app.labeling.columns import face_values, file_rows
from mien.app.labeling.records import Input, Result
from tests.support import face_of


def test_each_value_has_its_column() -> None:
    probabilities = {
        "surprise": 0.01, "fear": 0.02, "disgust": 0.03, "happiness": 0.04, "sadness": 0.05, "anger": 0.6,
        "neutral": 0.15, "contempt": 0.1,
    }  # fmt: skip
    points = [(1, 2), (31, 4), (16, 20), (5, 30), (25, 33)]
    face = face_of(
        probabilities,
        votes=probabilities | {"anger": 0.45, "neutral": 0.3},
        box=(10.04, 20, 30, 40),
        landmarks=dict(zip(("left_eye", "right_eye", "nose", "mouth_left", "mouth_right"), points, strict=True)),
        reasons=("small", "dark"),
        roll_degrees=3.8,
    )
    expected = {
        "p_surprise": 0.01, "p_fear": 0.02, "p_disgust": 0.03, "p_happiness": 0.04, "p_sadness": 0.05, "p_anger": 0.6,
        "p_neutral": 0.15, "p_contempt": 0.1, "x": 10.0, "y": 20.0, "width": 30.0, "height": 40.0, "label": "anger",
        "confidence": 0.6, "uncertain": False, "detection_score": 0.9, "roll": 3.8, "reasons": "small dark",
        "agreement": 0.45, "left_eye_x": 1, "left_eye_y": 2, "right_eye_x": 31, "right_eye_y": 4, "nose_x": 16,
        "nose_y": 20, "mouth_left_x": 5, "mouth_left_y": 30, "mouth_right_x": 25, "mouth_right_y": 33,
    }  # fmt: skip
    values = face_values(face)
    assert {name: values[name] for name in expected} == expected


def test_the_row_of_a_long_video_does_not_keep_its_frames() -> None:
    def frames() -> Any:
        for number in range(4_000):
            item = Input("a.mp4", "video", b"/a.mp4", 9, parent=1, frame=number)
            notes = ("stretched",) if number == 7 else ()
            yield Result(item, "ok" if number % 2 else "no_face", sha256="0" * 64, width=8, notes=notes)
        yield Result(Input("a.mp4", "video", b"/a.mp4", 9), "error", "corrupt", "truncated", sha256="0" * 64)

    journal: Any = SimpleNamespace(images=frames, detector="d", model="m", precision="fp32")
    tracemalloc.start()
    (row,) = file_rows(journal)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    names = ("status", "reason", "error", "frames", "faces", "image_width", "notes")
    assert [row[name] for name in names] == ["error", "corrupt", "truncated", 4_000, 0, 8, "stretched"]
    assert peak_bytes < 100_000
