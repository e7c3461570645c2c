"""Constant memory for any number of files, and runs with an image on which a stage fails."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from benchmarks.labeling import make_photos
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Prepared
from mien.data.contract import Array
from tests.albums import face_photo, write_photos
from tests.integration.labeling.conftest import Mien
from tests.support import ROOT, encoded, output_of

TABLES = ("csv", "files", "jsonl", "parquet", "coco", "label-studio", "report")
# A detector that costs next to nothing, so that the machinery around it is what is measured; it finds none to three
# faces, so that batches differ in size.
FIXED = """
import json
import sys
from pathlib import Path
import numpy as np
from mien.app.inference import labeler
from mien.app.inference.records import Box, Detection
from mien.app.settings import Settings
from benchmarks.labeling_memory import measure

class Fixed:
    name = "fixed"
    def detect(self, image):
        points = np.array([[35, 45], [75, 45], [55, 65], [40, 85], [70, 85]], np.float32)
        return [Detection(Box(20.0, 20.0, 70.0, 80.0), points, 0.9)] * (int(image[0, 0].sum()) % 4)

labeler.create_detector = lambda settings: Fixed()
"""
PROGRAM = f"""{FIXED}
folder, out, artifact, outputs = sys.argv[1:]
settings = Settings(model=Path(artifact), device="cpu")
print(json.dumps(measure(Path(folder), Path(out), settings, outputs=outputs.split(","), workers=2)))
"""
# Half of a folder is labeled, one photo more, and the rest; it is scanned again, moved, and its folders are renamed.
# CPU time, which other work on the machine does not change.
SCALE = f"""{FIXED}
import time
from benchmarks.labeling_memory import peak_rss_mb
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.progress import Reporter
from mien.app.labeling.run import label
folder, out, artifact = map(Path, sys.argv[1:4])
count = int(sys.argv[4])
settings = Settings(model=artifact, device="cpu")
def run(folder, limit=None):
    began = time.process_time()
    options = LabelOptions(inputs=[str(folder)], out=out, outputs=["csv"], workers=2, limit=limit)
    return label(options, settings, Reporter()), time.process_time() - began
half, half_s = run(folder, count // 2)
more, resume_s = run(folder, 1)
rest, _ = run(folder)
again, rescan_s = run(folder)
folder = folder.rename(folder.with_name("moved"))
moved, moved_s = run(folder)
for path in list(folder.iterdir()):
    path.rename(path.with_name("renamed " + path.name))
renamed, renamed_s = run(folder)
assert half.new + more.new + rest.new == count and again.new == moved.new == renamed.new == 0
assert moved.reused == renamed.reused == count
print(json.dumps(dict(
    ms_per_image=2000 * half_s / count, rescan_s=rescan_s, resume_s=resume_s, moved_s=moved_s, renamed_s=renamed_s,
    peak_rss_mb=peak_rss_mb(),
)))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_stays_flat_over_eight_hundred_files(tmp_path: Path, artifact: Path) -> None:
    make_photos(tmp_path / "photos", write_photos(tmp_path / "thirty", count=30), 800)
    command = [sys.executable, "-c", PROGRAM, tmp_path / "photos", tmp_path / "out", artifact, ",".join(TABLES)]
    figures: dict[str, float] = json.loads(output_of(*command, cwd=ROOT))
    assert figures["images"] == 800
    assert figures["faces"] > 400
    assert figures["rss_mb_end"] - figures["rss_mb_fifth"] < 25


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [5_000, 20_000, 100_000])
def test_rescans_resumes_and_moves_take_time_in_proportion(tmp_path: Path, artifact: Path, count: int) -> None:
    make_photos(tmp_path / "photos", write_photos(tmp_path / "thirty", count=30), count)
    command = [sys.executable, "-c", SCALE, tmp_path / "photos", tmp_path / "out", artifact, str(count)]
    figures: dict[str, float] = json.loads(output_of(*command, cwd=ROOT))
    row = [f"{count:,}", *(f"{value:.{2 if name.endswith('_s') else 1}f}" for name, value in figures.items())]
    print(f"\n| images | {' | '.join(figures)} |\n| {' | '.join(row)} |")
    for step in ("rescan_s", "moved_s", "renamed_s"):
        assert figures[step] < 1 + count * 0.001, step
    assert figures["peak_rss_mb"] < 400


def test_an_image_on_which_a_stage_fails_is_a_row_and_the_others_are_labeled(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison, prepare = (photos / "2.jpg").read_bytes(), Labeler.prepare

    def failing(pipeline: Labeler, payload: bytes, **options: bool) -> Prepared:
        if payload == poison:
            raise RuntimeError("the network has no answer")
        return prepare(pipeline, payload, **options)

    monkeypatch.setattr(Labeler, "prepare", failing)
    rows = mien.label(photos, out=tmp_path / "out", exit_code=3)
    (bad,) = (row for row in rows if row["status"] != "ok")
    assert (bad["file"], bad["reason"]) == ("2.jpg", "failed")
    assert bad["error"] == "RuntimeError: the network has no answer"


def test_a_photo_whose_faces_do_not_fit_into_memory_is_a_row_and_the_others_are_labeled(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classify, calls = Labeler.classify, []

    def failing(pipeline: Labeler, crops: Array) -> Array:
        calls.append(len(crops))
        if len(calls) in (1, 4):  # the whole batch, and then its third photo
            raise MemoryError
        return classify(pipeline, crops)

    monkeypatch.setattr(Labeler, "classify", failing)
    rows = mien.label(photos, out=tmp_path / "out", exit_code=3)
    assert calls == [5, 1, 1, 1, 1, 1]
    assert {row["file"]: row["reason"] for row in rows if row["status"] != "ok"} == {"2.jpg": "too_large"}


def test_a_model_that_fails_for_every_photo_ends_the_run(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Labeler, "classify", Mock(side_effect=RuntimeError("the GPU is gone")))
        done = mien("label", photos, "--out", tmp_path / "out")
    assert (done.exit_code, "the GPU is gone" in done.stderr) == (1, True)
    assert {row["status"] for row in mien.label(photos, out=tmp_path / "out")} == {"ok"}


def test_a_copy_that_is_too_wide_for_a_jpeg_is_a_row_and_the_others_are_labeled(
    mien: Mien, photos: Path, tmp_path: Path
) -> None:
    wide = np.pad(face_photo(), ((0, 0), (0, 65_600 - 112), (0, 0)))
    (photos / "wide.png").write_bytes(encoded(wide, "PNG"))
    rows = mien.label(photos, "--annotated-px", "70000", out=tmp_path / "out", exit_code=3)
    assert {row["file"]: row["reason"] for row in rows if row["status"] != "ok"} == {"wide.png": "failed"}
