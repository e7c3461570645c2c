"""A small labeled folder, created once; tests copy it before they change it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from mien.app.labeling.summary import Outcome
from mien.app.settings import Settings
from tests.albums import label_folder, write_photos, write_video
from tests.support import encoded, gradient_image

ALL = (
    "csv", "files", "jsonl", "parquet", "annotated", "crops", "classes", "coco", "label-studio", "fiftyone", "report",
    "timeline", "episodes", "anonymized",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Labeled:
    """A finished run: inputs, outputs and outcome."""

    photos: Path
    out: Path
    settings: Settings
    outcome: Outcome


@pytest.fixture(scope="session")
def finished(artifact: Path, tmp_path_factory: pytest.TempPathFactory) -> Labeled:
    base = tmp_path_factory.mktemp("finished")
    photos = write_photos(base / "photos", count=5)
    (photos / "none.png").write_bytes(encoded(gradient_image(), "PNG"))
    (photos / "<b>&amp;.jpg").write_bytes(b"broken")
    (photos / "notes.txt").write_text("words")
    write_video(photos / "clip.avi", frames=2)
    settings = Settings(model=artifact, detector="builtin", device="cpu")
    return Labeled(photos, base / "out", settings, label_folder(photos, base / "out", settings, *ALL))


@pytest.fixture
def own(finished: Labeled, tmp_path: Path) -> Labeled:
    """A copy of the run and, for another run, of its photos."""
    photos, out = (
        shutil.copytree(folder, tmp_path / folder.name, symlinks=True) for folder in (finished.photos, finished.out)
    )
    return Labeled(photos, out, finished.settings, finished.outcome)
