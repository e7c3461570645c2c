"""Photos in stores: paging, missing, slow and failing objects, resuming, and review."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from mien.app.labeling import store
from tests.labeling.conftest import Mien, tree
from tests.support import encoded
from tests.support.albums import by_file, face_photo, write_photos, write_video
from tests.support.serving import serving_in_thread

BUCKET = "photos"


@dataclass
class Store:
    """A WSGI application in front of moto's S3, with pages of two objects.

    failures: how often a path gets status 503; slow: paths that respond late; requests: number by path.
    """

    s3: Callable[..., Iterable[bytes]]
    url: str = ""
    failures: Counter[str] = field(default_factory=Counter)
    slow: set[str] = field(default_factory=set)
    requests: Counter[str] = field(default_factory=Counter)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"].encode("latin-1").decode()
        if environ["REQUEST_METHOD"] in ("GET", "HEAD"):
            self.requests[path] += 1
            time.sleep(3 * (path in self.slow))
            if self.failures[path]:
                self.failures[path] -= 1
                start_response("503 Service Unavailable", [("Content-Length", "0")])
                return []
            if "list-type=2" in environ["QUERY_STRING"]:
                environ["QUERY_STRING"] += "&max-keys=2"
        return self.s3(environ, start_response)

    def put(self, key: str, payload: bytes) -> None:
        """Store an object in the bucket."""
        headers = {"Content-Type": "application/octet-stream"}
        httpx.put(f"{self.url}/{BUCKET}/{key}", content=payload, headers=headers).raise_for_status()


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store on loopback with an empty bucket, of which failures are noticed soon."""
    moto = pytest.importorskip("moto.moto_server.werkzeug_app", reason="moto is not installed: S3 is not tested")
    from werkzeug.serving import make_server

    monkeypatch.setattr(store, "STALLED_S", 0.5)
    monkeypatch.setattr(store, "RETRIES", 2)
    s3 = Store(moto.DomainDispatcherApplication(moto.create_backend_app))
    with serving_in_thread(make_server("127.0.0.1", 0, s3, threaded=True)) as server:
        s3.url = f"http://127.0.0.1:{server.server_port}"
        httpx.post(f"{s3.url}/moto-api/reset").raise_for_status()
        httpx.put(f"{s3.url}/{BUCKET}").raise_for_status()
        store._bucket.cache_clear()
        yield s3
    store._bucket.cache_clear()


@pytest.fixture
def remote(mien: Mien, s3: Store) -> Mien:
    settings = {"ENDPOINT_URL": s3.url, "REGION": "eu-west-1", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    return replace(mien, environment=mien.environment | {f"AWS_{name}": value for name, value in settings.items()})


def test_a_bucket_gives_the_rows_of_a_folder_and_a_rerun_labels_nothing(
    mien: Mien, remote: Mien, s3: Store, tmp_path: Path
) -> None:
    photos = write_photos(tmp_path / "photos", "a.jpg", "b c.jpg", "deep/ü%20.jpg", "deep/d.jpg", ".hidden/e.jpg")
    write_video(photos / "clip.avi", frames=3)
    for path in filter(Path.is_file, photos.rglob("*")):
        s3.put(quote(f"2026/{path.relative_to(photos)}"), path.read_bytes())

    def label(program: Mien, source: str | Path, out: Path) -> tuple[int, dict[str, str]]:
        program.label(source, "--write", "csv,annotated,crops", out=out)
        return json.loads((out / "run.json").read_text())["labeled_now"], tree(out)

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
    urls = [f"s3:/{base}/{name}.jpg" for name in ("a", "b", "d", "gone")]
    for name in ("a.jpg", "b.jpg", "d.jpg"):
        s3.put(name, photo)
    s3.failures |= {f"{base}/a.jpg": 2, f"{base}/b.jpg": 100}
    s3.slow.add(f"{base}/d.jpg")
    given = "\n".join(urls).encode()
    rows = remote.label("--files-from", "-", exit_code=3, given=given)
    assert by_file(rows, "reason") == dict(zip(urls, ("", "unreadable", "unreadable", "not_found"), strict=True))
    assert s3.requests[f"{base}/b.jpg"] == 3, "two retries"
    s3.failures.clear()
    s3.slow.clear()
    s3.put("gone.jpg", photo)
    assert by_file(remote.label("--files-from", "-", given=given), "reason") == dict.fromkeys(urls, "")
