"""Jobs: images in the background, from a queue on the disk that survives a kill."""

import asyncio
import base64
import errno
import io
import json
import os
import re
import signal
import sqlite3
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
    for client in ("other", "third"):
        submitted(jobs, client)
    assert {job.client for job in jobs.of_client("other")} == {"other"}


def test_jobs_expire_by_the_time_that_has_passed_and_not_by_the_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(tmp_path, Settings(job_expiry_s=100))
    ended, running = submitted(jobs), submitted(jobs)
    jobs.end(ended, "done")
    (tmp_path / "photos").mkdir()
    monkeypatch.setattr(time, "time", lambda: 1e10)
    jobs.expire(60)
    assert jobs.get(ended.id).state == "done"
    jobs.expire(60)
    with pytest.raises(NoSuchJob):
        jobs.get(ended.id)
    assert not (tmp_path / ended.id).exists()
    assert jobs.get(running.id)
    assert (tmp_path / "photos").exists()


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


def test_a_job_on_a_full_disk_can_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path, Settings())
    job = submitted(jobs)
    connect = sqlite3.connect

    def full(*arguments: Any, **options: Any) -> sqlite3.Connection:
        if (tmp_path / job.id / "input").exists():
            raise sqlite3.OperationalError("database or disk is full")
        return connect(*arguments, **options)

    monkeypatch.setattr(sqlite3, "connect", full)
    jobs.end(job, "canceled")
    assert jobs.get(job.id).state == "canceled"


def test_cancel_follows_the_state_of_a_job(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings())
    first, _ = submitted(jobs), submitted(jobs)
    assert started(jobs).id == first.id, "the oldest"
    jobs.cancel(first)  # as seen before it has started
    assert (jobs.get(first.id).state, jobs.get(first.id).cancel) == ("running", 1)
    assert (tmp_path / first.id / "input").exists(), "it keeps its images until it has stopped"
    jobs.end(first, "done")
    jobs.cancel(first)  # as seen before it has ended
    assert jobs.get(first.id).state == "done"
    jobs.cancel(jobs.get(first.id))
    with pytest.raises(NoSuchJob):
        jobs.cancel(first)


@pytest.fixture
def labeling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Replace `mien label` by a script."""
    if os.name == "nt":
        pytest.skip("a script of a POSIX shell")

    def write(body: str) -> None:
        script = tmp_path / "mien.sh"
        script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        script.chmod(0o755)
        monkeypatch.setattr("mien.app.service.jobs.sys.executable", str(script))

    return write


@pytest.mark.parametrize(("kills", "state"), [(1, "running"), (2, "failed")])
def test_a_killed_job_is_continued_once_and_says_why_it_failed(
    tmp_path: Path, labeling: Callable[[str], object], kills: int, state: str
) -> None:
    jobs = Jobs(tmp_path / "jobs", Settings())
    job = submitted(jobs)
    labeling(f"kill -{signal.SIGKILL.value} $$")
    for _ in range(kills):
        asyncio.run(jobs.process(started(jobs)))
    assert jobs.get(job.id).state == state
    assert (tmp_path / "jobs" / job.id / "input").exists() == (state == "running")
    assert ("killed twice" in str(jobs.get(job.id).reason)) == (state == "failed")


def test_a_canceled_job_gets_one_signal(tmp_path: Path, labeling: Callable[[str], object]) -> None:
    jobs = Jobs(tmp_path / "jobs", Settings())
    submitted(jobs)
    job = started(jobs)
    log = tmp_path / "signals"
    labeling(f"trap 'echo term >> {log}' TERM\nfor i in 1 2 3 4; do sleep 0.3; done\nexit 4")
    jobs.cancel(job)
    asyncio.run(jobs.process(job))
    assert jobs.get(job.id).state == "canceled"
    assert log.read_text() == "term\n"


def test_labeling_ends_with_the_service_or_with_an_error_of_the_table(
    tmp_path: Path, labeling: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(tmp_path / "jobs", Settings())
    submitted(jobs)
    job = started(jobs)
    log = tmp_path / "signals"
    labeling(f"trap 'echo term >> {log}; exit 4' TERM\nfor i in 1 2 3 4 5 6 7 8 9; do sleep 0.3; done")
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "get", Mock(side_effect=sqlite3.OperationalError("disk I/O error")))
        with pytest.raises(sqlite3.Error):
            asyncio.run(jobs.process(job))

    async def stop() -> None:
        task = asyncio.create_task(jobs.process(job))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stop())
    assert log.read_text() == "term\nterm\n"
    assert jobs.get(job.id).state == "running", "it continues at the next start"


@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("call", ["mien.app.service.jobs.Path.mkdir", "mien.app.service.uploads._DiskFile.write"])
def test_a_job_that_the_disk_cannot_hold_is_refused_and_takes_no_place(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    client = connect(jobs_dir=tmp_path, max_jobs=1)
    with monkeypatch.context() as patch:
        patch.setattr(call, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        assert "No space left on device" in problem(client.post("/v1/jobs", **FORM), 503, "queue-full")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    assert client.post("/v1/jobs", **FORM).status_code == 202


def test_a_job_that_another_setting_interrupted_starts_again(queue: Queue) -> None:
    before, after = queue(detection_px=320), queue()
    job = submitted(before)
    before.end = lambda *_: None  # type: ignore[method-assign]  # the service is killed just before
    asyncio.run(before.process(job))
    asyncio.run(after.process(job))
    assert after.progress(job) == ({}, 1), "before it begins"
    asyncio.run(after.process(job))
    assert after.get(job.id).state == "done"
    assert after.progress(job) == ({"no_face": 1}, 0)


def test_of_damaged_journals_a_running_job_starts_again_and_one_that_has_ended_is_lost(
    connect: Connect, tmp_path: Path, queue: Queue
) -> None:
    jobs, client = queue(), f"key:{key_hash('k')[:12]}"
    running, ended = submitted(jobs, client), submitted(jobs, client)
    jobs.end(ended, "done")
    for job in (running, ended):
        (tmp_path / job.id / "out" / ".mien").mkdir(parents=True)
        (tmp_path / job.id / "out" / ".mien" / "journal.sqlite3").write_bytes(b"no table" * 1000)
    assert jobs.progress(running) == ({}, 1)
    for _ in range(2):
        asyncio.run(jobs.process(running))
    service = connect(jobs_dir=tmp_path, api_key_sha256=key_hash("k"))
    service.headers["x-api-key"] = "k"
    assert [(job["id"], job["state"]) for job in service.get("/v1/jobs").json()["jobs"]] == [(running.id, "done")]
    for path in ("", "/results", "/results?format=ndjson", "/results?format=csv"):
        assert "cannot be read" in problem(service.get(f"/v1/jobs/{ended.id}{path}"), 404, "no-such-job")
    assert service.delete(f"/v1/jobs/{ended.id}").status_code == 204


def test_a_zip_file_without_images_is_done_without_a_reason(queue: Queue) -> None:
    jobs = queue()
    folder = jobs.begin_upload("client")
    zipfile.ZipFile(folder / "input" / "0.zip", "w").close()
    job = jobs.submit(folder, {}, JobOptions())
    asyncio.run(jobs.process(job))
    assert (jobs.get(job.id).state, jobs.get(job.id).reason) == ("done", None)


def test_the_limit_of_images_counts_those_before_a_restart(queue: Queue) -> None:
    before, after = queue(max_job_images=2), queue(max_job_images=5)
    job = submitted(before, images=8)
    before.end = lambda *_: None  # type: ignore[method-assign]  # the service is killed just before
    asyncio.run(before.process(job))
    asyncio.run(after.process(job))
    assert after.progress(job) == ({"no_face": 5}, 3)


def test_pages_and_streams_of_results_are_complete_and_in_order(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
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
    lines = client.get(f"{url}/results?format=ndjson")
    assert lines.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line) for line in lines.text.splitlines()] == [
        image for page in pages for image in page["images"]
    ]
    for form in ("json", "ndjson", "csv"):
        plain, packed = (
            client.get(f"{url}/results?format={form}", headers={"accept-encoding": encoding})
            for encoding in ("identity", "gzip")
        )
        assert (packed.headers.get("content-encoding"), plain.headers.get("content-encoding")) == ("gzip", None)
        assert packed.content == plain.content
    table = client.get(f"{url}/results", params={"format": "csv", "after": pages[0]["next"]}).text.splitlines()
    assert table[0].startswith("name,frame,time_s,face,x,y,width,height,label,confidence,uncertain,p_surprise")
    assert [row.split(",")[0] for row in table[1:]] == names[2:]
    assert {row.count(",") for row in table} == {table[0].count(",")}
    cursors = (b"[]", b'["a", Infinity]', b'["a", 9999999999999999999]', b'["\\ud800", 1]', b"[" * 7000)
    mistakes = ["?page=2", "?after=x", "?limit=1&limit=2"]
    for mistake in mistakes + [f"?after={base64.urlsafe_b64encode(cursor).decode()}" for cursor in cursors]:
        assert client.get(f"{url}/results{mistake}").status_code == 422, "it would be the first page again"
    monkeypatch.setattr("mien.app.service.routes.jobs._PAGE_BYTES", 200)
    small = client.get(f"{url}/results").json()
    assert len(small["images"]) in (2, 3)
    assert small["next"]


def test_a_job_returns_ranked_expressions_and_crops_on_request(connect: Connect, tmp_path: Path, queue: Queue) -> None:
    jobs = queue()
    job = submitted(jobs, photo=sample_photo().read_bytes(), top_k=3, crops=True)
    asyncio.run(jobs.process(job))
    (image,) = connect(jobs_dir=tmp_path).get(f"/v1/jobs/{job.id}/results").json()["images"]
    assert len(image["faces"][0]["top"]) == 3
    assert decode(base64.b64decode(image["faces"][0]["crop"]["base64"])).shape == (112, 112, 3)


@pytest.mark.usefixtures("idle")
def test_given_boxes_of_a_job_are_found_by_the_names_of_the_client(
    connect: Connect, tmp_path: Path, queue: Queue
) -> None:
    client, jobs = connect(jobs_dir=tmp_path), queue()
    images = [("images", (name, PHOTO)) for name in ("me.png", "other.png", "a/b.png")]
    images += [("images", ("all.zip", zipped()))]

    def post(table: str) -> httpx.Response:
        return client.post("/v1/jobs", files=[*images, ("boxes", ("boxes.csv", table))])

    rows = ["file,x,y,width,height", "me.png,10,20,60,60", "me.png,80,20,60,60", "a/b.png,1,2,50,50"]
    response = post("\n".join([*rows, "all.zip/in/00.png,5,6,40,40"]))
    asyncio.run(jobs.process(jobs.get(response.json()["id"])))
    found = client.get(f"{response.headers['location']}/results").json()["images"]
    assert {image["name"]: [list(face["box"].values()) for face in image["faces"]] for image in found} == {
        "me.png": [[10, 20, 60, 60], [80, 20, 60, 60]],
        "other.png": [],
        "a/b.png": [[1, 2, 50, 50]],
        "all.zip/in/00.png": [[5, 6, 40, 40]],
    }
    wrong = ("\n".join([*rows, "gone.png,1,2,3,4"]), "file,x\nme.png,1", '{"images": ' + "[" * 9000, "[" * 600_000)
    for table, detail in zip(wrong, ("gone.png", "columns file, x", "COCO", "500,000 values"), strict=True):
        assert detail in problem(post(table), 422, "invalid-request")
    assert len(jobs.of_client("testclient")) == 1


@pytest.mark.parametrize(("images", "crops"), [(6, False), (200, True)])
def test_crops_of_a_job_count_as_its_bytes(tmp_path: Path, artifact: Path, images: int, crops: bool) -> None:
    jobs = Jobs(tmp_path, Settings(model=artifact, detector="builtin", device="cpu", max_job_bytes=100_000))
    job = submitted(jobs, images=images, photo=sample_photo().read_bytes(), crops=crops)
    asyncio.run(jobs.process(job))
    counts, remaining = jobs.progress(job)
    assert jobs.get(job.id).state == "done"
    assert counts["ok"] >= 6
    assert (remaining > 0) == ("only the images before 2 faces" in str(jobs.get(job.id).reason)) == crops


@pytest.mark.usefixtures("idle")
def test_a_repeated_request_gets_the_job_of_the_first_one(connect: Connect, tmp_path: Path) -> None:
    client = connect(jobs_dir=tmp_path, api_key_sha256=f"{key_hash('a')},{key_hash('b')}", metrics_without_key=True)

    def post(api_key: str, order: str | None = None) -> str:
        headers = {"x-api-key": api_key} | ({"idempotency-key": order} if order else {})
        response = client.post("/v1/jobs", headers=headers, **FORM)
        assert response.headers["location"].endswith(response.json()["id"])
        return str(response.json()["id"])

    first = post("a", "order-7")
    assert post("a", "order-7") == first
    assert len({first, post("a", "order-8"), post("b", "order-7"), post("b")}) == 4
    counts = re.findall(r'mien_jobs\{state="\w+"\} (\d)', client.get("/metrics").text)
    assert sum(map(int, counts)) == 4
    empty = {"x-api-key": "b", "idempotency-key": ""}
    problem(client.post("/v1/jobs", headers=empty, **FORM), 422, "invalid-request")


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
        (of("application/zip", zipped()), 202, "0.zip"),
        (of("application/x-zip-compressed", zipped()), 202, "0.zip"),
        (of("application/x-zip", zipped()), 202, "0.zip"),
        (of("application/octet-stream", zipped()), 202, "0.zip"),
        (of("application/octet-stream", zipped()[:-9]), 422, None),
        (of("application/zip", zipped()[:-30]), 422, None),
        (of("application/octet-stream", b"\x00\x00\x00\x20ftypisom and more"), 202, "0.mp4"),
        (of("application/octet-stream", PHOTO), 415, None),
        (of("video/mpeg", b"a video"), 202, "0.mpg"),
        (of("video/x-m4v", b"a video"), 202, "0.m4v"),
        (of("video/3gpp", b"a video"), 202, "0.3gp"),
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
    response = client.post("/v1/jobs", files=[("images", part) for part in names.items()], headers=own)
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
    assert len(results[0]["faces"][0]["top"]) == 1
    assert "crop" not in results[0]["faces"][0]
    queued = client.post("/v1/jobs", headers=own, **FORM).headers["location"]
    for address in (url, queued):
        assert (
            client.get(address, headers=other).status_code == client.delete(address, headers=other).status_code == 404
        )
    assert client.delete(queued, headers=own).status_code == 204
    assert client.get(queued, headers=own).json()["state"] == "canceled"
    assert client.delete(queued, headers=own).status_code == 204
    problem(client.get(queued, headers=own), 404, "no-such-job")
    assert not list(tmp_path.glob("*/input")), "the images are removed when a job has ended"


def test_only_keys_list_jobs(connect: Connect, tmp_path: Path) -> None:
    assert connect(jobs_dir=tmp_path).get("/v1/jobs").status_code == 401, "others may share the address"


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_job_survives_a_kill_and_none_of_its_images_is_lost(serve: Serve, tmp_path: Path, workers: int) -> None:
    server = serve(jobs_dir=tmp_path / "jobs", workers=workers)
    urls = [
        httpx.post(f"{server.url}/v1/jobs", timeout=30, **of("application/zip", zipped(count))).headers["location"]
        for count in (60, 3)
    ]
    eventually(lambda: server.get(urls[0]).json()["images"], failure=server.log.read_text)
    if workers == 1:
        os.kill(server.process.pid, signal.SIGKILL)
        server.process.wait()
    else:
        server.stop()
    server.start()
    for url, count in zip(urls, (60, 3), strict=True):
        eventually(lambda: server.get(url).json()["state"] == "done", failure=server.log.read_text, timeout_s=120)  # noqa: B023
        assert server.get(url).json()["images"] == {"no_face": count}
    results = server.get(f"{urls[0]}/results?limit=100").json()["images"]
    assert [image["name"] for image in results] == [f"in/{number:02}.png" for number in range(60)]
