"""Rows of undone partitions: kept for unchanged inputs and for files with the same bytes. Tested without a cluster."""

import shutil
import zipfile
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from pyarrow import parquet

from mien.app.labeling.facts import facts_of, open_pipeline
from mien.app.labeling.files import FILES_DIR, LABELS_DIR, STATE_DIR
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.ray.actor import Labeler
from mien.app.labeling.ray.earlier import EARLIER
from mien.app.labeling.ray.ledger import Ledger
from mien.app.labeling.ray.partitions import begin_run, drop_plans, read_partition, write_plan
from mien.app.labeling.scan import scan
from mien.app.labeling.summary import Outcome
from mien.app.settings import Settings
from tests.albums import write_photos


def rows(out: Path, table: str) -> list[dict[str, object]]:
    return sorted(parquet.read_table(out / table).to_pylist(), key=lambda row: (row["file"], row.get("face") or 0))


def label(photos: Path, out: Path, artifact: Path) -> tuple[int, int]:
    """What the driver and its workers do; returns the numbers of labeled images and of those with earlier rows."""
    for folder in (LABELS_DIR, FILES_DIR, ".mien/part"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    options, settings = LabelOptions(inputs=[str(photos)], out=out), Settings(model=artifact, device="cpu")
    facts = facts_of(open_pipeline(settings))
    outcome = Outcome()
    with closing(Ledger(out, outcome)) as ledger:
        ledger.add(scan(options), lambda _count: None)
        ledger.settle(facts)
        keys = [write_plan(out, group, facts) for group in ledger.missing(4)]
        assert not any(Labeler(settings, options, begin_run(out), facts)({"key": keys})["error"])
        partitions = [partition for key in keys if (partition := read_partition(out, key))]
        assert all(map(ledger.take, partitions))
        labels = rows(out, LABELS_DIR)
        assert outcome.statuses.total() == len({(row["file"], row["frame"]) for row in labels})
        assert outcome.labels.total() == sum(row["face"] is not None for row in labels)
    drop_plans(out)
    reused = sum(partition.reused for partition in partitions)
    return sum(sum(partition.statuses.values()) for partition in partitions) - reused, reused


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = write_photos(tmp_path / "photos", count=8)
    (folder / "cut.jpg").write_bytes((folder / "0.jpg").read_bytes()[:900])
    with zipfile.ZipFile(folder / "some.zip", "w") as archive:
        archive.write(folder / "3.jpg", "in/3.jpg")
    return folder


def test_rows_of_renamed_files_and_of_their_neighbors_are_kept(photos: Path, artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert label(photos, out, artifact) == (10, 0)
    (photos / "1.jpg").rename(photos / "other name.jpg")
    (photos / "7.jpg").touch()
    (photos / "cut.jpg").touch()  # an error is no result
    write_photos(photos, count=1, first=20)  # 0.jpg has other bytes
    (photos / "2.jpg").unlink()
    assert label(photos, out, artifact) == (2, 7)
    assert label(photos, tmp_path / "fresh", artifact) == (9, 0)
    for table in (LABELS_DIR, FILES_DIR):
        assert rows(out, table) == rows(tmp_path / "fresh", table)
    shutil.rmtree(out / STATE_DIR / EARLIER)
    assert label(photos, out, artifact) == (0, 0)


def test_photos_with_damaged_rows_are_labeled_again(photos: Path, artifact: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert label(photos, out, artifact) == (10, 0)
    before = rows(out, LABELS_DIR)
    for path in photos.iterdir():
        path.touch()
    for path in (out / LABELS_DIR).iterdir():
        path.write_bytes(path.read_bytes()[:-20])
    assert label(photos, out, artifact) == (10, 0)
    assert rows(out, LABELS_DIR) == before


def test_files_that_failed_for_a_temporary_reason_are_labeled_again(
    photos: Path, artifact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("mien.app.labeling.engine.read_file", Mock(side_effect=OSError("the disk does not answer")))
        label(photos, tmp_path / "out", artifact)
    new, kept = label(photos, tmp_path / "out", artifact)
    assert (new, kept) == (9, 1), "only the archive was read"
