"""Photos in stores: paging, missing, slow and failing objects, resuming, and review."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from mien.app.labeling import store
from tests.labeling.conftest import Mien, tree
from tests.support import encoded
from tests.support.albums import face_photo, write_photos, write_video
from tests.support.stores import BUCKET, Store, put, s3_server

OUTPUTS = ("--write", "csv,annotated,crops,report")


@pytest.fixture
def s3() -> Iterator[Store]:
    with s3_server() as store:
        yield store


@pytest.fixture
def remote(mien: Mien, s3: Store) -> Mien:
    settings = {"ENDPOINT_URL": s3.url, "REGION": "eu-west-1", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    return replace(mien, environment=mien.environment | {f"AWS_{name}": value for name, value in settings.items()})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store, "STALLED_S", 0.5)
    monkeypatch.setattr(store, "RETRIES", 2)
    store._bucket.cache_clear()
    yield
    store._bucket.cache_clear()


def reasons_of(rows: list[dict[str, str]]) -> dict[str, str]:
    return {Path(row["file"]).name: row["reason"] for row in rows}


def test_a_bucket_gives_the_rows_of_a_folder_and_a_rerun_labels_nothing(
    mien: Mien, remote: Mien, s3: Store, tmp_path: Path
) -> None:
    photos = write_photos(tmp_path / "photos", "a.jpg", "b c.jpg", "deep/ü%20.jpg", "deep/d.jpg", ".hidden/e.jpg")
    write_video(photos / "clip.avi", frames=3)
    for path in filter(Path.is_file, photos.rglob("*")):
        put(s3.url, quote(f"2026/{path.relative_to(photos)}"), path.read_bytes())

    def label(program: Mien, source: str | Path, out: Path) -> tuple[int, dict[str, str]]:
        """Number of labeled images, and hashes of the files except for the report, which has links."""
        program.label(source, *OUTPUTS, out=out)
        files = tree(out)
        del files["report.html"]
        return json.loads((out / "run.json").read_text())["labeled_now"], files

    new, files = label(mien, photos, tmp_path / "local")
    url = f"s3://{BUCKET}/2026"
    assert label(remote, url, mien.out) == (new, files)
    assert label(remote, url, mien.out) == (0, files)
    assert s3.requests[f"/{BUCKET}"] > 2, "the objects come in pages"
    assert {s3.requests[path] for path in s3.requests if path.endswith((".jpg", ".avi"))} == {1}
    for path in (mien.out / "crops").rglob("*.png"):
        path.unlink()
    exported = remote("review", mien.out, "--export", tmp_path / "faces", "--all")
    assert exported.stdout.startswith("7 faces"), exported.stdout


def test_missing_slow_and_failing_objects_are_one_row_each_and_are_retried(remote: Mien, s3: Store) -> None:
    photo, base = encoded(face_photo(), "JPEG"), f"/{BUCKET}"
    names = ("a.jpg", "b.jpg", "d.jpg", "gone.jpg")
    for name in names[:3]:
        put(s3.url, name, photo)
    s3.failures |= {f"{base}/a.jpg": 2, f"{base}/b.jpg": 100}
    s3.slow.add(f"{base}/d.jpg")
    given = "".join(f"s3:/{base}/{name}\n" for name in names).encode()
    rows = remote.label("--files-from", "-", exit_code=3, given=given)
    assert reasons_of(rows) == {"a.jpg": "", "b.jpg": "unreadable", "d.jpg": "unreadable", "gone.jpg": "not_found"}
    assert s3.requests[f"{base}/b.jpg"] == 3, "two retries"
    s3.failures.clear()
    s3.slow.clear()
    put(s3.url, "gone.jpg", photo)
    assert reasons_of(remote.label("--files-from", "-", given=given)) == dict.fromkeys(names, "")
