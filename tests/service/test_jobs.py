"""Jobs: images in the background, from a queue on the disk that survives a kill."""

import asyncio
import base64
import errno
import io
import json
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from typer.testing import CliRunner

from mien.app.cli.program import app
from mien.app.errors import NoSuchJob, QueueFull
from mien.app.service.jobs import Job, Jobs
from mien.app.service.keys import key_hash
from mien.app.service.schemas import JobOptions
from mien.app.settings import Settings
from mien.data.contract import decode
from tests.service.conftest import Serve
from tests.support import encoded, eventually, gradient_image, sample_photo
from tests.support.albums import write_video
from tests.support.app import Connect, problem

PHOTO = encoded(gradient_image(160, 120), "PNG")
FORM = {"files": [("images", ("a.png", PHOTO))]}
Queue = Callable[..., Jobs]


def zipped(count: int = 1) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(count):
            archive.writestr(f"in/{number:02}.png", PHOTO)
    return buffer.getvalue()


def submitted(jobs: Jobs, client: str = "client", images: int = 1, *, photo: bytes = PHOTO, **options: Any) -> Job:
    folder = jobs.begin_upload(client)
    for number in range(images):
        (folder / "input" / f"{number}.png").write_bytes(photo)
    return jobs.submit(folder, {}, JobOptions(**options))


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services that start no job."""
    monkeypatch.setattr(Jobs, "start_next", lambda _: None)


@pytest.fixture
def queue(tmp_path: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """The jobs of the folder, with these settings, labeled by a tiny model in this process, whose imports are done."""

    async def run(*command: str, env: dict[str, str], **_: object) -> Mock:
        done = CliRunner(env=env).invoke(app, list(command[command.index("label") :]))
        output = done.stdout.encode(), done.stderr.encode()
        return Mock(returncode=done.exit_code, communicate=AsyncMock(return_value=output))

    monkeypatch.setattr("mien.app.service.jobs.asyncio.create_subprocess_exec", run)
    return lambda **settings: Jobs(tmp_path, Settings(model=artifact, detector="builtin", device="cpu", **settings))


def started(jobs: Jobs) -> Job:
    job = jobs.start_next()
    assert job is not None
    return job


def test_a_client_uses_half_of_the_jobs_that_are_left(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings(max_jobs=6))
    uploads = [jobs.begin_upload("greedy") for _ in range(2)]
    assert os.name == "nt" or uploads[0].stat().st_mode & 0o777 == 0o700, "only the service reads it"
    with pytest.raises(QueueFull, match="2 of 4 jobs, 2 of them yours, are being uploaded"):
        jobs.begin_upload("greedy")
    jobs.discard(jobs.begin_upload("other"))
    for upload in uploads:
        jobs.submit(upload, {}, JobOptions())
    submitted(jobs, "greedy")
    with pytest.raises(QueueFull, match="3 of 6 jobs, 3 of them yours, are kept"):
        jobs.begin_upload("greedy")
    submitted(jobs, "other")


def test_jobs_expire_by_the_time_that_has_passed_and_not_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(tmp_path, Settings(job_expiry_s=100))
    ended, running = submitted(jobs), submitted(jobs)
    jobs.end(ended, "done")
    monkeypatch.setattr(time, "time", lambda: 1e10)
    jobs.expire(60)
    assert jobs.get(ended.id).state == "done"
    jobs.expire(60)
    with pytest.raises(NoSuchJob):
        jobs.get(ended.id)
    assert not (tmp_path / ended.id).exists()
    assert jobs.get(running.id)


def test_a_service_removes_expired_jobs(connect: Connect, tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings())
    job = submitted(jobs)
    jobs.end(job, "done")
    client = connect(jobs_dir=tmp_path, job_expiry_s=0.2)
    eventually(lambda: client.get(f"/v1/jobs/{job.id}").status_code == 404)


def test_an_upload_of_a_killed_process_is_removed_and_one_that_arrives_is_not(tmp_path: Path) -> None:
    killed, jobs = (Jobs(tmp_path, Settings()) for _ in range(2))
    lost = [killed.begin_upload("client") for _ in range(2)]
    jobs.expire(1e6)
    assert all(folder.exists() for folder in lost), "another process receives them"
    del killed
    jobs.expire(0)
    assert not any(folder.exists() for folder in lost)
    jobs.begin_upload("client")


@pytest.fixture
def labeling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that replaces `mien label`, and writes the signals that it gets to `tmp_path / "signals"`."""
    if os.name == "nt":
        pytest.skip("a script of a POSIX shell")
    script = tmp_path / "mien.sh"
    trap = f"trap 'echo term >> {tmp_path / 'signals'}; exit 4' TERM"
    script.write_text(f"#!/bin/sh\n{trap}\nfor i in 1 2 3 4 5 6 7 8 9; do sleep 0.3; done\n", encoding="utf-8")
    script.chmod(0o755)
    monkeypatch.setattr("mien.app.service.jobs.sys.executable", str(script))
    return script


def test_a_killed_job_is_continued_once_and_says_why_it_failed(tmp_path: Path, labeling: Path) -> None:
    jobs = Jobs(tmp_path / "jobs", Settings())
    job = submitted(jobs)
    labeling.write_text("#!/bin/sh\nkill -KILL $$\n")
    for state, reason in (("running", "None"), ("failed", "killed twice")):
        asyncio.run(jobs.process(started(jobs)))
        assert jobs.get(job.id).state == state
        assert reason in str(jobs.get(job.id).reason)


@pytest.mark.usefixtures("labeling")
def test_labeling_ends_with_the_service_and_when_its_job_is_canceled(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs", Settings())
    submitted(jobs)
    job = started(jobs)

    async def stop() -> None:
        task = asyncio.create_task(jobs.process(job))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stop())
    assert jobs.get(job.id).state == "running", "it continues at the next start"
    jobs.cancel(job)
    asyncio.run(jobs.process(job))
    assert jobs.get(job.id).state == "canceled"
    assert (tmp_path / "signals").read_text() == "term\nterm\n"


@pytest.mark.usefixtures("idle")
def test_a_job_that_the_disk_cannot_hold_is_refused_and_takes_no_place(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(jobs_dir=tmp_path, max_jobs=1)
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patch:
        patch.setattr("mien.app.service.uploads._DiskFile.write", full)
        assert "No space left on device" in problem(client.post("/v1/jobs", **FORM), 503, "queue-full")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert client.post("/v1/jobs", **FORM).status_code == 202


def test_a_job_that_another_setting_interrupted_starts_again(queue: Queue) -> None:
    before, after = queue(detection_px=320), queue()
    job = submitted(before)
    before.end = lambda *_: None  # type: ignore[method-assign]  # the service is killed just before
    for jobs in (before, after, after):
        asyncio.run(jobs.process(job))
    assert after.get(job.id).state == "done"
    assert after.progress(job) == ({"no_face": 1}, 0)


def test_pages_and_streams_of_results_are_complete_and_in_order(connect: Connect, tmp_path: Path, queue: Queue) -> None:
    jobs = queue(max_job_images=5)
    job = submitted(jobs, images=7)
    asyncio.run(jobs.process(job))
    client = connect(jobs_dir=tmp_path)
    url = f"/v1/jobs/{job.id}"
    assert client.get(url).json()["reason"] == "only the first 5 images were labeled (MIEN_MAX_JOB_IMAGES)"
    pages = [client.get(f"{url}/results?limit=2").json()]
    while pages[-1]["next"] is not None:
        pages.append(client.get(f"{url}/results", params={"limit": 2, "after": pages[-1]["next"]}).json())
    names = [f"{number}.png" for number in range(5)]
    assert [[image["name"] for image in page["images"]] for page in pages] == [names[:2], names[2:4], names[4:]]
    lines = client.get(f"{url}/results?format=ndjson").text.splitlines()
    assert [json.loads(line) for line in lines] == [image for page in pages for image in page["images"]]
    table = client.get(f"{url}/results", params={"format": "csv", "after": pages[0]["next"]}).text.splitlines()
    assert [row.split(",")[0] for row in table[1:]] == names[2:]
    assert {row.count(",") for row in table} == {table[0].count(",")}
    for cursor in (b"x", b'["a", 9999999999999999999]', b'["\\ud800", 1]', b"[" * 7000):
        mistaken = client.get(f"{url}/results", params={"after": base64.urlsafe_b64encode(cursor).decode()})
        assert mistaken.status_code == 422, "it would be the first page again"


@pytest.mark.usefixtures("idle")
def test_given_boxes_of_a_job_are_found_by_the_names_of_the_client(
    connect: Connect, tmp_path: Path, queue: Queue
) -> None:
    client, jobs = connect(jobs_dir=tmp_path), queue()
    images = [("images", ("me.png", PHOTO)), ("images", ("all.zip", zipped()))]
    rows = "file,x,y,width,height\nme.png,10,20,60,60\nme.png,80,20,60,60\n"
    table = f"{rows}all.zip/in/00.png,5,6,40,40"
    response = client.post("/v1/jobs", files=[*images, ("boxes", ("boxes.csv", table))])
    asyncio.run(jobs.process(jobs.get(response.json()["id"])))
    found = client.get(f"{response.headers['location']}/results").json()["images"]
    assert {image["name"]: [list(face["box"].values()) for face in image["faces"]] for image in found} == {
        "me.png": [[10, 20, 60, 60], [80, 20, 60, 60]],
        "all.zip/in/00.png": [[5, 6, 40, 40]],
    }
    for wrong, detail in ((f"{rows}gone.png,1,2,3,4", "gone.png"), ("[" * 600_000, "500,000 values")):
        response = client.post("/v1/jobs", files=[*images, ("boxes", ("boxes.csv", wrong))])
        assert detail in problem(response, 422, "invalid-request")


def test_crops_of_a_job_count_as_its_bytes(queue: Queue) -> None:
    jobs = queue(max_job_bytes=100_000)
    for crops in (False, True):
        job = submitted(jobs, images=3, photo=sample_photo().read_bytes(), crops=crops)
        asyncio.run(jobs.process(job))
        ended = jobs._ended_early(job)
        assert (ended is not None and ended[0] == "done" and "before 2 faces" in str(ended[1])) == crops


@pytest.mark.usefixtures("idle")
def test_a_repeated_request_gets_the_job_of_the_first_one(connect: Connect, tmp_path: Path) -> None:
    client = connect(jobs_dir=tmp_path, api_key_sha256=f"{key_hash('a')},{key_hash('b')}")

    def post(api_key: str, order: str) -> str:
        headers = {"x-api-key": api_key, "idempotency-key": order}
        return client.post("/v1/jobs", headers=headers, **FORM).headers["location"]

    first = post("a", "order-7")
    assert post("a", "order-7") == first
    assert len({first, post("a", "order-8"), post("b", "order-7")}) == 3


def test_two_uploads_at_once_with_one_idempotency_key_make_one_job(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings())
    slow, fast = (jobs.begin_upload("a", "order-7") for _ in range(2))
    job = jobs.submit(fast, {}, JobOptions())
    assert jobs.submit(slow, {}, JobOptions()) == job
    assert not slow.exists()


def of(kind: str, body: bytes) -> dict[str, Any]:
    return {"content": body, "headers": {"content-type": kind}}


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize(
    ("request_", "status", "file"),
    [
        (of("application/x-zip-compressed", zipped()), 202, "0.zip"),
        (of("application/octet-stream", zipped()), 202, "0.zip"),
        (of("application/zip", zipped()[:-30]), 422, None),
        (of("application/octet-stream", b"\x00\x00\x00\x20ftypisom and more"), 202, "0.mp4"),
        (of("video/mpeg", b"a video"), 202, "0.mpg"),
        (of("video/3gpp", bytes(300_000)), 413, None),
        (of("application/json", b"{}"), 415, None),
        ({"files": FORM["files"] * 6}, 413, None),
        ({"files": [("x", b"")]}, 422, None),
    ],
)
def test_a_job_is_stored_under_a_name_that_labeling_reads_or_refused(
    connect: Connect, tmp_path: Path, request_: dict[str, Any], status: int, file: str | None
) -> None:
    response = connect(jobs_dir=tmp_path, max_job_bytes=200_000, max_job_images=5).post("/v1/jobs", **request_)
    assert response.status_code == status, response.text
    assert [path.name for path in tmp_path.glob("*/input/*")] == ([] if file is None else [file])
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == (file is not None)


@pytest.mark.usefixtures("idle")
def test_a_job_has_progress_results_and_an_owner(connect: Connect, tmp_path: Path, queue: Queue) -> None:
    client = connect(jobs_dir=tmp_path, api_key_sha256=f"{key_hash('own')},{key_hash('other')}")
    own, other = ({"x-api-key": name} for name in ("own", "other"))
    video = write_video(tmp_path / "clip.avi", frames=2).read_bytes()
    names = {"b.jpg": sample_photo().read_bytes(), "a.png": PHOTO, "c.jpg": b"no image", "clip.avi": video}
    query = {"top_k": 3, "crops": True}
    response = client.post("/v1/jobs", files=[("images", part) for part in names.items()], headers=own, params=query)
    url, jobs = response.headers["location"], queue()
    assert (response.status_code, response.json()["state"], response.json()["remaining"]) == (202, "queued", 4)
    asyncio.run(jobs.process(jobs.get(response.json()["id"])))
    done = client.get(url, headers=own).json()
    assert (done["state"], done["images"], done["remaining"]) == ("done", {"ok": 3, "no_face": 1, "error": 1}, 0)
    lists = [client.get("/v1/jobs", headers=key).json()["jobs"] for key in (own, other)]
    assert lists == [[done], []]
    results = client.get(f"{url}/results", headers=own).json()["images"]
    assert [(image["name"], image["frame"], len(image["faces"]), image["reason"]) for image in results] == [
        ("b.jpg", None, 1, None),
        ("a.png", None, 0, None),
        ("c.jpg", None, 0, "unsupported"),
        ("clip.avi", 0, 1, None),
        ("clip.avi", 1, 1, None),
    ]
    assert len(results[0]["faces"][0]["top"]) == 3
    assert decode(base64.b64decode(results[0]["faces"][0]["crop"]["base64"])).shape == (112, 112, 3)
    queued = client.post("/v1/jobs", headers=own, **FORM).headers["location"]
    for method in ("GET", "DELETE"):
        assert client.request(method, queued, headers=other).status_code == 404
    assert connect(jobs_dir=tmp_path).get("/v1/jobs").status_code == 401, "without keys: others may share the address"
    assert client.delete(queued, headers=own).status_code == 204
    assert client.get(queued, headers=own).json()["state"] == "canceled"
    assert client.delete(queued, headers=own).status_code == 204
    problem(client.get(queued, headers=own), 404, "no-such-job")
    assert not list(tmp_path.glob("*/input")), "the images are removed when a job has ended"


def test_a_job_survives_a_kill_and_none_of_its_images_is_lost(serve: Serve, tmp_path: Path) -> None:
    server = serve(jobs_dir=tmp_path / "jobs")
    url = httpx.post(f"{server.url}/v1/jobs", **of("application/zip", zipped(60))).headers["location"]
    eventually(lambda: server.get(url).json()["images"], failure=server.log.read_text)
    server.process.kill()
    server.process.wait()
    server.start()
    eventually(lambda: server.get(url).json()["state"] == "done", failure=server.log.read_text, timeout_s=120)
    results = server.get(f"{url}/results?limit=100").json()["images"]
    assert [image["name"] for image in results] == [f"in/{number:02}.png" for number in range(60)]
