"""Memory stays flat however many files there are, and one poisoned picture does not end a run."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from app.detect import Face
from app.labelling import run
from app.labelling.progress import Quiet
from app.labelling.run import Request
from app.pipeline import Pipeline
from app.settings import Settings
from data.contract import Array
from tests.albums import face_photo
from tests.support import encoded

ROOT = Path(__file__).resolve().parents[3]
# A detector that costs nothing, so that the machinery around it is what is measured.
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from app.detect import Face
from app.labelling import run
from app.labelling.progress import Quiet
from app.pipeline import Pipeline

class Fixed:
    name = "fixed"
    def detect(self, image):
        points = np.array([[35, 45], [75, 45], [55, 65], [40, 85], [70, 85]], np.float32)
        return [Face((20.0, 20.0, 70.0, 80.0), points, 0.9)]

class Watch(Quiet):
    done = 0
    def picture(self, record):
        self.done += 1
        if self.done in (TOTAL // 5, TOTAL - 1):
            print(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)

run.create_detector = lambda settings: Fixed()
folder, out, TOTAL = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
outcome = run.label(run.Request(out, (str(folder),), outputs=("csv", "report"), workers=2), run_settings(), Watch())
assert outcome.tally.faces == TOTAL, outcome.tally
"""


def memory_growth_mb(folder: Path, out: Path, artefact: Path, count: int) -> float:
    """Megabytes that a run grows by between a fifth of `count` files and all of them."""
    payload = encoded(face_photo(), "JPEG")
    for number in range(count):
        place = folder / f"{number // 1000:03d}"
        place.mkdir(parents=True, exist_ok=True)
        original = place / "original.jpg"
        if number % 1000 == 0:
            original.write_bytes(payload)
        else:
            os.link(original, place / f"{number:06d}.jpg")
    settings = f"from app.settings import Settings\nrun_settings = lambda: Settings(model=Path({str(artefact)!r}))\n"
    program = PROGRAM.replace("\nclass Fixed", f"\n{settings}\nclass Fixed", 1)
    command = [sys.executable, "-c", program, str(folder), str(out), str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    early, late = (int(line) for line in done.stdout.split())
    return (late - early) / 1e6


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_over_eight_hundred_files(tmp_path: Path, artefact: Path) -> None:
    assert memory_growth_mb(tmp_path / "photos", tmp_path / "out", artefact, 800) < 25


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_over_a_hundred_thousand_files(tmp_path: Path, artefact: Path) -> None:
    assert memory_growth_mb(tmp_path / "photos", tmp_path / "out", artefact, 100_000) < 25


class Poisoned:
    """A detector that fails on one picture, known by its brightness."""

    name = "poisoned"

    def detect(self, image: Array) -> list[Face]:
        if image.mean() > 250:
            raise RuntimeError("the network has no answer")
        points = np.array([[35, 45], [75, 45], [55, 65], [40, 85], [70, 85]], np.float32)
        return [Face((20.0, 20.0, 70.0, 80.0), points, 0.9)]


def test_a_picture_on_which_a_stage_fails_is_a_row_and_the_others_are_labelled(
    tmp_path: Path, artefact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(4):
        pixels = np.full((112, 112, 3), 255, np.uint8) if number == 2 else face_photo(variant=number)
        (photos / f"{number}.png").write_bytes(encoded(pixels))
    monkeypatch.setattr(run, "create_detector", lambda _settings: Poisoned())
    outcome = run.label(Request(tmp_path / "out", (str(photos),), outputs=("csv",)), Settings(model=artefact), Quiet())
    assert outcome.statuses == {"ok": 3, "error": 1}
    with (tmp_path / "out" / "labels.csv").open(encoding="utf-8", newline="") as file:
        (bad,) = (row for row in csv.DictReader(file) if row["status"] == "error")
    assert (bad["file"], bad["reason"]) == ("2.png", "failed")
    assert bad["error"] == "RuntimeError: the network has no answer"


def test_pipelines_share_their_model_and_not_their_detector(artefact: Path) -> None:
    first, second = run.open_pipelines(Settings(model=artefact, detector="haar"), 2)
    assert isinstance(first, Pipeline)
    assert first.classifier is second.classifier
    assert first.detector is not second.detector
