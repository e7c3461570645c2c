"""Photos in stores and on a web server: paging, missing, slow and failing objects, resuming, and review."""

import json
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from PIL import Image

from mien.app.labeling import store
from tests.labeling.conftest import Mien, tree
from tests.support import encoded
from tests.support.albums import face_photo, parquet_rows, write_photos, write_video
from tests.support.stores import (
    BUCKET,
    Faulty,
    azure_server,
    delete,
    google_settings,
    put,
    s3_server,
    serving_in_thread,
)

OUTPUTS = ("--write", "csv,files,annotated,crops,report")


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    pytest.importorskip("moto", reason="moto is not installed: S3 is not tested")
    with s3_server() as url:
        yield url


@pytest.fixture
def s3(moto: str) -> Iterator[Faulty]:
    with serving_in_thread(Faulty(moto)) as server:
        yield server


@pytest.fixture
def web() -> Iterator[Faulty]:
    with serving_in_thread(Faulty()) as server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store, "STALLED_S", 0.5)
    monkeypatch.setattr(store, "RETRIES", 2)
    store._bucket.cache_clear()
    yield
    store._bucket.cache_clear()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = write_photos(tmp_path / "photos", "a.jpg", "b c.jpg", "deep/ü%20.jpg", "deep/d.jpg", ".hidden/e.jpg")
    with zipfile.ZipFile(folder / "some.zip", "w") as archive:
        archive.writestr("in/a.jpg", encoded(face_photo(variant=9), "JPEG"))
    write_video(folder / "clip.avi", frames=3)
    first, second = (Image.fromarray(face_photo(variant=number)) for number in range(2))
    first.save(folder / "pages.tif", save_all=True, append_images=[second])
    return folder


def s3_mien(mien: Mien, url: str) -> Mien:
    settings = {"AWS_ENDPOINT_URL": url, "AWS_REGION": "eu-west-1"}
    settings |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    return replace(mien, environment=mien.environment | settings)  # ends the processes of both


def reasons_of(rows: list[dict[str, str]]) -> dict[str, str]:
    return {Path(row["file"]).name: row["reason"] for row in rows}


def upload(url: str, folder: Path, prefix: str) -> None:
    for path in filter(Path.is_file, folder.rglob("*")):
        put(url, quote(f"{prefix}/{path.relative_to(folder)}"), path.read_bytes())


def assert_labels_as_a_folder(mien: Mien, remote: Mien, url: str, folder: Path, place: Path) -> None:
    def label(program: Mien, source: str | Path, out: Path) -> tuple[int, dict[str, str]]:
        """Number of labeled images, and hashes of the files except for the report, which has links."""
        summary, files = program.summary(source, *OUTPUTS, out=out), tree(out)
        del files["report.html"]
        return summary["new"], files

    new, files = label(mien, folder, place / "local")
    assert label(remote, url, place / "out") == (new, files)
    assert label(remote, url, place / "out") == (0, files)
    given = f"{url}/gone.jpg\n".encode()
    (row,) = remote.label("--files-from", "-", out=place / "list", exit_code=3, given=given)
    assert row["reason"] == "not_found"


def test_a_bucket_gives_the_rows_of_a_folder_and_a_rerun_labels_nothing(
    mien: Mien, photos: Path, tmp_path: Path, moto: str, s3: Faulty
) -> None:
    upload(moto, photos, "2026")
    remote = s3_mien(mien, s3.url)
    assert_labels_as_a_folder(mien, remote, f"s3://{BUCKET}/2026", photos, tmp_path)
    assert s3.requests[f"/{BUCKET}"] > 2, "the objects come in pages"
    assert {s3.requests[path] for path in s3.requests if path.endswith((".jpg", ".avi", ".zip"))} == {1}
    for path in (mien.out / "crops").rglob("*.png"):
        path.unlink()
    exported = remote("review", mien.out, "--export", tmp_path / "faces", "--all")
    assert exported.stdout.startswith("10 faces"), exported.stdout


def test_google_cloud_storage_gives_the_rows_of_a_folder(mien: Mien, photos: Path, tmp_path: Path, moto: str) -> None:
    upload(moto, photos, "google")
    remote = replace(mien, environment=mien.environment | google_settings(moto, tmp_path))
    assert_labels_as_a_folder(mien, remote, f"gs://{BUCKET}/google", photos, tmp_path)


@pytest.mark.registry
@pytest.mark.timeout(600)
def test_azure_gives_the_rows_of_a_folder(
    mien: Mien, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import obstore

    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is not installed: Azure is not tested")
    subprocess.run([npm, "install", "--prefix", tmp_path / "npm", "--ignore-scripts", "azurite@3.35.0"], check=True)
    with azure_server(tmp_path / "npm" / "node_modules" / ".bin" / "azurite-blob") as settings:
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        for path in filter(Path.is_file, photos.rglob("*")):
            obstore.put(store._bucket(f"az://{BUCKET}"), f"azure/{path.relative_to(photos)}", path)
        remote = replace(mien, environment=mien.environment | settings)
        assert_labels_as_a_folder(mien, remote, f"az://{BUCKET}/azure", photos, tmp_path)


def test_missing_slow_and_failing_objects_are_one_row_each_and_are_retried(
    mien: Mien, photos: Path, tmp_path: Path, moto: str, s3: Faulty
) -> None:
    upload(moto, photos, "faults")
    base, remote = f"/{BUCKET}/faults", s3_mien(mien, s3.url)
    s3.failures |= {f"{base}/a.jpg": 2, f"{base}/b c.jpg": 100}
    s3.slow.add(f"{base}/deep/d.jpg")
    given = "".join(f"s3://{BUCKET}/faults/{name}\n" for name in ("a.jpg", "b c.jpg", "deep/d.jpg", "gone.jpg"))
    rows = remote.label("--files-from", "-", exit_code=3, given=given.encode())
    reasons = {"a.jpg": "", "b c.jpg": "unreadable", "d.jpg": "unreadable", "gone.jpg": "not_found"}
    assert reasons_of(rows) == reasons
    assert s3.requests[f"{base}/b c.jpg"] == 3, "two retries"
    s3.failures.clear()
    s3.slow.clear()
    put(moto, "faults/gone.jpg", (photos / "a.jpg").read_bytes())
    rows = remote.label("--files-from", "-", given=given.encode())
    assert reasons_of(rows) == dict.fromkeys(reasons, "")


def test_a_list_of_web_addresses_is_labeled_and_its_signatures_are_not_written(
    mien: Mien, photos: Path, tmp_path: Path, web: Faulty
) -> None:
    web.files = {f"/{name}": (photos / "a.jpg").read_bytes() for name in ("a.jpg", "b c.jpg", "c.jpg")}
    web.failures |= {"/a.jpg": 2, "/c.jpg": 100}
    web.slow.add("/d.jpg")
    names = ("a.jpg?signature=secret", "b c.jpg", "c.jpg", "d.jpg", "gone.jpg")
    (tmp_path / "list.txt").write_text("".join(f"{web.url}/{name}\n" for name in names))
    rows = mien.label("--files-from", tmp_path / "list.txt", *OUTPUTS, exit_code=3)
    labeled, failed = dict.fromkeys(("a.jpg", "b c.jpg"), ""), dict.fromkeys(("c.jpg", "d.jpg"), "unreadable")
    assert reasons_of(rows) == labeled | failed | {"gone.jpg": "not_found"}
    assert web.requests["/c.jpg"] == 3
    written = [path for path in mien.out.rglob("*") if path.is_file() and ".mien" not in path.parts]
    assert not [path for path in written if b"secret" in path.read_bytes()]


def test_addresses_that_no_request_can_have_are_rows(mien: Mien) -> None:
    given = b"http://[::1/a.zip\nhttps://cdn..example.com/b.mp4\nhttps://cdn..example.com/c.jpg\n"
    rows = mien.label("--files-from", "-", exit_code=3, given=given)
    assert reasons_of(rows) == dict.fromkeys(("a.zip", "b.mp4", "c.jpg"), "unreadable")


def test_an_unknown_bucket_and_a_missing_library_are_named(
    mien: Mien, s3: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = s3_mien(mien, s3.url).run("s3://nowhere/at-all")
    assert refused.exit_code == 1
    assert "s3://nowhere/at-all" in refused.stderr.replace("\n", "")
    store._bucket.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    missing = mien.run("s3://photos")
    assert missing.exit_code == 1
    assert "pip install obstore" in missing.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_of_a_cluster_read_from_the_store_and_keep_results_of_renamed_objects(
    mien: Mien, photos: Path, tmp_path: Path, moto: str
) -> None:
    url, remote, out = f"s3://{BUCKET}/cluster", s3_mien(mien, moto), mien.out
    for name in ("a.jpg", "deep/d.jpg"):
        put(moto, f"cluster/{name}", (photos / name).read_bytes())
    assert remote.summary(url, "--write", "parquet", out=out)["new"] == 2
    (photos / "a.jpg").rename(photos / "renamed.jpg")
    delete(moto, "cluster/a.jpg")
    upload(moto, write_photos(photos, "deep/d.jpg", first=9), "cluster")
    ray = ("--engine", "ray", "--workers", "2", "--json-log")
    process = remote.start("label", url, "--out", out, "--write", "parquet", *ray)
    _, log = process.communicate(timeout=250)
    assert process.returncode == 0, log
    summary = json.loads(log.splitlines()[-1])
    assert (summary["new"], summary["reused"]) == (9, 1)
    mien.label(photos, "--write", "parquet", out=tmp_path / "local")
    assert parquet_rows(out / "labels.parquet") == parquet_rows(tmp_path / "local" / "labels.parquet")
