"""Jobs: images in the background, from a queue on the disk that survives a kill."""

import io
import os
import signal
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

from mien.app.service.keys import key_hash
from tests.service.conftest import Serve
from tests.support import encoded, eventually, gradient_image, sample_photo
from tests.support.albums import write_video
from tests.support.serving import Server

PHOTO = encoded(gradient_image(160, 120), "JPEG")


def wait(server: Server, url: str, *states: str, **headers: str) -> dict[str, Any]:
    job: dict[str, Any] = {}

    def reached() -> bool:
        job.update(httpx.get(f"{server.url}{url}", headers=headers).raise_for_status().json())
        return job["state"] in states

    eventually(reached, failure=lambda: (job, server.log.read_text()), timeout_s=120)
    return job


def submit(server: Server, **request: Any) -> str:
    response = httpx.post(f"{server.url}/v1/jobs", timeout=30, **request)
    assert response.status_code == 202, response.text
    return response.headers["location"]


def zipped(count: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(count):
            archive.writestr(f"photos/{number:04}.jpg", PHOTO)
    return buffer.getvalue()


def test_a_job_has_progress_results_and_an_owner(serve: Serve, tmp_path: Path) -> None:
    keys = {name: {"x-api-key": name} for name in ("mine", "other")}
    server = serve(
        model="fast", jobs_dir=tmp_path / "jobs", api_key_sha256=",".join(map(key_hash, keys)), job_expiry_s=4
    )
    photo = sample_photo().read_bytes()
    files = [("images", (name, body)) for name, body in (("b.jpg", photo), ("a.png", PHOTO), ("c.jpg", b"no image"))]
    url = submit(server, files=files, headers=keys["mine"])
    assert httpx.get(f"{server.url}{url}", headers=keys["other"]).status_code == 404
    done = wait(server, url, "done", **keys["mine"])
    counts = {"ok": 1, "no_face": 1, "error": 1}
    assert done == {"id": url.rsplit("/", 1)[1], "state": "done", "images": counts, "remaining": 0, "reason": None}
    lists = {name: httpx.get(f"{server.url}/v1/jobs", headers=key).json()["jobs"] for name, key in keys.items()}
    assert lists == {"mine": [done], "other": []}
    results = httpx.get(f"{server.url}{url}/results", headers=keys["mine"]).json()["images"]
    assert [(image["name"], len(image["faces"]), image["reason"]) for image in results] == [
        ("b.jpg", 1, None),
        ("a.png", 0, None),
        ("c.jpg", 0, "unsupported"),
    ]
    headers = keys["mine"] | {"content-type": "image/jpeg"}
    expected = httpx.post(f"{server.url}/v1/expressions", content=photo, headers=headers, timeout=30).json()
    assert results[0]["faces"][0]["box"] == expected["images"][0]["faces"][0]["box"]
    assert results[0]["faces"][0]["label"] == expected["images"][0]["faces"][0]["label"]
    assert "p_surprise" in httpx.get(f"{server.url}{url}/results?format=csv", headers=keys["mine"]).text
    (folder,) = (path for path in (tmp_path / "jobs").iterdir() if path.is_dir())
    assert not (folder / "input").exists(), "the images are removed when the job has ended"
    eventually(lambda: not folder.exists())
    assert httpx.get(f"{server.url}{url}", headers=keys["mine"]).status_code == 404, "expired"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_job_survives_a_kill_and_none_of_its_images_is_lost(serve: Serve, tmp_path: Path, workers: int) -> None:
    server = serve(jobs_dir=tmp_path / "jobs", workers=workers)
    url = submit(server, content=zipped(60), headers={"content-type": "application/zip"})
    later = submit(server, content=zipped(3), headers={"content-type": "application/zip"})
    eventually(lambda: wait(server, url, "running", "done")["images"])
    if workers == 1:
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    else:
        server.stop()
    server.start()
    assert wait(server, url, "done")["images"] == {"no_face": 60}
    pages = [httpx.get(f"{server.url}{url}/results", params={"limit": 40}).json()]
    pages.append(httpx.get(f"{server.url}{url}/results", params={"after": pages[0]["next"], "limit": 40}).json())
    assert pages[1]["next"] is None
    names = [image["name"] for page in pages for image in page["images"]]
    assert names == [f"photos/{number:04}.jpg" for number in range(60)]
    assert wait(server, later, "done")["images"] == {"no_face": 3}


def test_a_job_is_canceled_and_limits_hold(serve: Serve, tmp_path: Path) -> None:
    server = serve(jobs_dir=tmp_path / "jobs", max_jobs=4, max_job_bytes=2_000_000, max_job_images=5)
    video = write_video(tmp_path / "clip.mp4", frames=50)
    url = submit(server, content=video.read_bytes(), headers={"content-type": "video/mp4"})
    queued = submit(server, files=[("images", ("a.jpg", PHOTO))])
    assert httpx.get(f"{server.url}{queued}").json()["remaining"] == 1
    full = httpx.post(f"{server.url}/v1/jobs", files=[("images", ("a.jpg", PHOTO))])
    assert (full.status_code, full.json()["type"]) == (503, "urn:mien:problem:queue-full")
    assert httpx.delete(f"{server.url}{queued}").status_code == 204
    assert wait(server, queued, "canceled")["images"] == {}
    assert httpx.delete(f"{server.url}{queued}").status_code == 204
    assert httpx.get(f"{server.url}{queued}").json()["type"] == "urn:mien:problem:no-such-job"
    assert wait(server, url, "done")["reason"] == "only the first 5 images were labeled (MIEN_MAX_JOB_IMAGES)"
    frames = httpx.get(f"{server.url}{url}/results").json()["images"]
    assert [image["frame"] for image in frames] == [0, 1, 2, 3, 4], "no more than the limit"
    large = {"content": bytes(3_000_000), "headers": {"content-type": "application/zip"}}
    many = {"files": [("images", ("a.jpg", PHOTO))] * 6}
    torn = {"content": zipped(2)[:-30], "headers": {"content-type": "application/zip"}}
    for body, status in ((large, 413), (many, 413), ({"json": {}}, 415), ({"files": [("x", b"")]}, 422), (torn, 422)):
        assert httpx.post(f"{server.url}/v1/jobs", **body).status_code == status
    folders = [path.name for path in (tmp_path / "jobs").iterdir() if path.is_dir()]
    assert folders == [url.rsplit("/", 1)[1]], "refused uploads leave nothing"
