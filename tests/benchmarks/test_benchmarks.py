"""Benchmarks: short runs, and scores on labeled photos."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import neighbors_fer, photos
from benchmarks.photos import FoundFace, LabeledFace, Program, other_program
from tests.support import ROOT, encoded, environment_of, gradient_image, output_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "options", "figure"),
    [
        ("labeling", "--count 6 --rounds 1", "efficiency"),
        ("serving", "--photos PHOTOS --rounds 1 --passes 2 --steady 10", "efficiency"),
        ("stream", "--seconds 1", "frames_per_s"),
    ],
)
def test_short_runs_give_results(artifact: Path, tmp_path: Path, module: str, options: str, figure: str) -> None:
    for step in range(4):
        (tmp_path / f"{step}.jpg").write_bytes(encoded(gradient_image(120 + 20 * step, 100), "JPEG"))
    chosen = options.replace("PHOTOS", str(tmp_path)).split()
    environment = environment_of(model=artifact, device="cpu", detector="builtin", detect_rotated=False)
    output = output_of(sys.executable, "-m", f"benchmarks.{module}", *chosen, cwd=ROOT, env=environment)
    assert json.loads(output)[figure] > 0


def test_programs_are_scored_on_the_faces_that_all_of_them_find(tmp_path: Path) -> None:
    labels = "file,face_x,face_y,label,second,certainty\n"
    labels += "a.jpg,50,50,fear,,certain\nb.jpg,50,50,anger,,certain\nb.jpg,50,50,neutral,anger,arguable\n"
    (tmp_path / "labels.csv").write_text(labels, encoding="utf-8")
    fer = {"box": [40, 40, 20, 20], "emotions": {"fear": 0.5, "angry": 0.499, "happy": 0.001}}
    neighbors_fer.write_predictions(tmp_path / "other.jsonl", [tmp_path / "a.jpg", tmp_path / "b.jpg"], [[fer], []])
    labeled = photos.read_labels(tmp_path)
    assert labeled == [LabeledFace("a.jpg", 50, 50, "fear"), LabeledFace("b.jpg", 50, 50, "anger")]
    large = FoundFace((0, 0, 140, 140), {"anger": 0.7})
    programs = {"both": Program(lambda _: [large], 0.6), "other": other_program(tmp_path / "other.jsonl")}
    both, other = photos.measure(labeled, programs).values()
    assert [(row["found"], row["faces"]) for row in (both, other)] == [(2, 1), (1, 1)]
    assert [row["accuracy"].value for row in (both, other)] == [0, 1]
    assert (both["kept"].value, both["kept_accuracy"].value) == (1, 0)
    assert "kept" not in other
    assert other["nll"].value == pytest.approx(0.693, abs=1e-3)
