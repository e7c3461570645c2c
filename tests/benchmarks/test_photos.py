"""Accuracy on labeled photos: which face a label is of, and on which faces programs are compared."""

from pathlib import Path

import pytest

from benchmarks import neighbors_fer, photos
from benchmarks.photos import FoundFace, LabeledFace

SMALL, LARGE = FoundFace((40, 40, 20, 20), {"fear": 0.9}), FoundFace((0, 0, 140, 140), {"anger": 0.7})


@pytest.mark.parametrize(
    ("faces", "point", "expected"),
    [
        ([LARGE, SMALL], (50, 52), SMALL),  # both contain it, and its center is nearer
        ([LARGE, SMALL], (10, 90), LARGE),
        ([SMALL], (50, 65), SMALL),  # beside the box
        ([SMALL], (50, 90), None),  # of another face, which was not found
        ([], (50, 50), None),
    ],
)
def test_a_label_is_of_the_face_around_its_point_or_near_it(
    faces: list[FoundFace], point: tuple[float, float], expected: FoundFace | None
) -> None:
    assert photos.face_at(faces, *point) == expected


def test_programs_are_scored_on_the_faces_that_all_of_them_find(tmp_path: Path) -> None:
    labels = "file,face_x,face_y,label,second,certainty\n"
    labels += "a.jpg,50,50,fear,,certain\nb.jpg,50,50,anger,,certain\nb.jpg,50,50,neutral,anger,arguable\n"
    (tmp_path / "labels.csv").write_text(labels, encoding="utf-8")
    fer = {"box": [40, 40, 20, 20], "emotions": {"fear": 0.5, "angry": 0.499, "happy": 0.001}}
    neighbors_fer.write_predictions(tmp_path / "other.jsonl", [tmp_path / "a.jpg", tmp_path / "b.jpg"], [[fer], []])
    labeled = photos.read_labels(tmp_path)
    assert labeled == [LabeledFace("a.jpg", 50, 50, "fear"), LabeledFace("b.jpg", 50, 50, "anger")]
    programs = {"both": lambda _: [LARGE], "other": photos.predicted_faces(tmp_path / "other.jsonl")}
    results = photos.measure(labeled, programs)
    assert [(row["found"], row["scored"]) for row in results.values()] == [(2, 1), (1, 1)]
    assert [row["accuracy"].value for row in results.values()] == [0, 1]
    assert results["other"]["nll"].value == pytest.approx(0.693, abs=1e-3)
    assert "| other | 1 of 2 | 100.0 (" in photos.table(results)
