"""Queue of jobs on the disk."""

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
from unittest.mock import Mock

import httpx
import pytest

from mien.app.errors import NoSuchJob, QueueFull
from mien.app.service.jobs import Job, Jobs
from mien.app.service.keys import key_hash
from mien.app.service.routes.jobs import client_name
from mien.app.service.schemas import JobOptions
from mien.app.settings import Settings
from mien.data.contract import decode
from tests.support import encoded, gradient_image, sample_photo
from tests.support.app import Connect, problem

PHOTO = encoded(gradient_image(160, 120), "PNG")
Queue = Callable[..., Jobs]


def zipped(photo: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.png", photo)
    return buffer.getvalue()


def submitted(jobs: Jobs, client: str = "client", images: int = 1, *, photo: bytes = PHOTO, **options: Any) -> Job:
    folder = jobs.begin_upload(client)
    for number in range(images):
        (folder / "input" / f"{number}.png").write_bytes(photo)
    return jobs.submit(folder, {}, JobOptions(**options))


@pytest.fixture
def queue(tmp_path: Path, artifact: Path) -> Queue:
    """The jobs of the folder, with these settings, which are labeled by a tiny model."""
    return lambda **settings: Jobs(tmp_path, Settings(model=artifact, detector="builtin", device="cpu", **settings))


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


@pytest.mark.parametrize(
    ("file", "name"),
    [("0.zip/a/1.jpg", "a/1.jpg"), ("000001.zip/a/1.jpg", "mine.zip/a/1.jpg"), ("000002.jpg", "me.jpg")],
)
def test_a_result_has_the_name_that_the_client_gave(file: str, name: str) -> None:
    assert client_name({"000001.zip": "mine.zip", "000002.jpg": "me.jpg"}, file) == name


def test_cancel_follows_the_state_of_a_job(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings())
    first, second = submitted(jobs), submitted(jobs)
    started = jobs.start_next()
    assert started is not None
    assert started.id == first.id, "the oldest"
    jobs.cancel(first)  # as seen before it has started
    assert (jobs.get(first.id).state, jobs.get(first.id).cancel) == ("running", 1)
    assert (tmp_path / first.id / "input").exists(), "it keeps its images until it has stopped"
    jobs.cancel(second)
    assert jobs.get(second.id).state == "canceled"
    assert not (tmp_path / second.id / "input").exists()
    jobs.end(first, "done")
    jobs.cancel(first)  # as seen before it has ended
    assert jobs.get(first.id).state == "done"
    jobs.cancel(jobs.get(first.id))
    with pytest.raises(NoSuchJob):
        jobs.cancel(first)


@pytest.fixture
def labeling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace `mien label` by a script, which logs its signals."""
    script = tmp_path / "mien.sh"
    monkeypatch.setattr("mien.app.service.jobs.sys.executable", str(script))
    return script


def write(script: Path, body: str) -> None:
    script.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    script.chmod(0o755)


@pytest.mark.skipif(os.name == "nt", reason="a script of a POSIX shell")
@pytest.mark.parametrize(("kills", "state"), [(1, "running"), (2, "failed")])
def test_a_killed_job_is_continued_once_and_says_why_it_failed(
    tmp_path: Path, labeling: Path, kills: int, state: str
) -> None:
    jobs = Jobs(tmp_path / "jobs", Settings())
    job = submitted(jobs)
    write(labeling, f"kill -{signal.SIGKILL.value} $$")
    for _ in range(kills):
        started = jobs.start_next()
        assert started is not None
        asyncio.run(jobs.process(started))
    after = jobs.get(job.id)
    assert after.state == state
    assert (tmp_path / "jobs" / job.id / "input").exists() == (state == "running")
    assert after.reason == (
        None if state == "running" else "labeling failed: killed twice, probably for lack of memory"
    )


@pytest.mark.skipif(os.name == "nt", reason="a script of a POSIX shell")
def test_a_canceled_job_gets_one_signal(tmp_path: Path, labeling: Path) -> None:
    jobs = Jobs(tmp_path / "jobs", Settings())
    submitted(jobs)
    job = jobs.start_next()
    assert job is not None
    log = tmp_path / "signals"
    write(labeling, f"trap 'echo term >> {log}' TERM\nfor i in 1 2 3 4 5 6 7 8; do sleep 0.3; done\nexit 4")
    jobs.cancel(job)
    asyncio.run(jobs.process(job))
    assert jobs.get(job.id).state == "canceled"
    assert log.read_text() == "term\n"


@pytest.mark.skipif(os.name == "nt", reason="a script of a POSIX shell")
def test_labeling_ends_with_the_service_or_with_an_error_of_the_table(
    tmp_path: Path, labeling: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Jobs(tmp_path / "jobs", Settings())
    submitted(jobs)
    job = jobs.start_next()
    assert job is not None
    log = tmp_path / "signals"
    write(labeling, f"trap 'echo term >> {log}; exit 4' TERM\nfor i in 1 2 3 4 5 6 7 8 9; do sleep 0.3; done")
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


def test_an_upload_that_cannot_be_stored_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path, Settings(max_jobs=1))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(OSError, match="No space"):
            jobs.begin_upload("client")
    assert jobs.begin_upload("client").exists()


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


def test_a_job_returns_ranked_expressions_and_crops_on_request(connect: Connect, tmp_path: Path, queue: Queue) -> None:
    jobs = queue()
    photo = sample_photo().read_bytes()
    plain, full = submitted(jobs, photo=photo), submitted(jobs, photo=photo, top_k=3, crops=True)
    for job in (plain, full):
        asyncio.run(jobs.process(job))
    client = connect(jobs_dir=tmp_path)
    faces = [client.get(f"/v1/jobs/{job.id}/results").json()["images"][0]["faces"][0] for job in (plain, full)]
    assert [(len(face["top"]), "crop" in face) for face in faces] == [(1, False), (3, True)]
    assert decode(base64.b64decode(faces[1]["crop"]["base64"])).shape == (112, 112, 3)
    assert faces[0]["probabilities"] == faces[1]["probabilities"]


def test_given_boxes_of_a_job_are_found_by_the_names_of_the_client(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    monkeypatch.setattr(Jobs, "start_next", lambda _: None)  # it is labeled below
    client, jobs = connect(jobs_dir=tmp_path), queue()
    images = [("images", (name, PHOTO)) for name in ("me.png", "other.png", "a/b.png")]
    images += [("images", ("all.zip", zipped(PHOTO)))]

    def post(table: str) -> httpx.Response:
        return client.post("/v1/jobs", files=[*images, ("boxes", ("boxes.csv", table))])

    rows = ["file,x,y,width,height", "me.png,10,20,60,60", "me.png,80,20,60,60", "a/b.png,1,2,50,50"]
    response = post("\n".join([*rows, "all.zip/a.png,5,6,40,40"]))
    asyncio.run(jobs.process(jobs.get(response.json()["id"])))
    found = client.get(f"{response.headers['location']}/results").json()["images"]
    assert {image["name"]: [list(face["box"].values()) for face in image["faces"]] for image in found} == {
        "me.png": [[10, 20, 60, 60], [80, 20, 60, 60]],
        "other.png": [],
        "a/b.png": [[1, 2, 50, 50]],
        "all.zip/a.png": [[5, 6, 40, 40]],
    }
    wrong = ("\n".join([*rows, "gone.png,1,2,3,4"]), "file,x\nme.png,1", '{"images": ' + "[" * 9000, "[" * 600_000)
    for table, detail in zip(wrong, ("gone.png", "columns file, x", "COCO", "500,000 values"), strict=True):
        assert detail in problem(post(table), 422, "invalid-request")
    assert len(jobs.of_client("testclient")) == 1


def test_crops_of_a_job_count_as_its_bytes(queue: Queue) -> None:
    jobs = queue(max_job_bytes=100_000)
    photo = sample_photo().read_bytes()
    for images, crops in ((6, False), (200, True)):
        job = submitted(jobs, images=images, photo=photo, crops=crops)
        asyncio.run(jobs.process(job))
        counts, remaining = jobs.progress(job)
        assert jobs.get(job.id).state == "done"
        assert counts["ok"] >= 6
        assert (remaining > 0) == (jobs.get(job.id).reason is not None) == crops
    assert str(jobs.get(job.id).reason).startswith("only the images before 2 faces, because crops count as 40 kB each")


def test_pages_have_a_limit_in_bytes(
    connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    monkeypatch.setattr("mien.app.service.routes.jobs._PAGE_BYTES", 200)
    jobs = queue()
    job = submitted(jobs, images=4)
    asyncio.run(jobs.process(job))
    page = connect(jobs_dir=tmp_path).get(f"/v1/jobs/{job.id}/results").json()
    assert len(page["images"]) in (2, 3)
    assert page["next"]


def test_a_repeated_request_gets_the_job_of_the_first_one(connect: Connect, tmp_path: Path) -> None:
    client = connect(jobs_dir=tmp_path, api_key_sha256=f"{key_hash('a')},{key_hash('b')}", metrics_without_key=True)

    def post(api_key: str, **headers: str) -> str:
        files = [("images", ("a.png", PHOTO))]
        response = client.post("/v1/jobs", files=files, headers={"x-api-key": api_key, **headers})
        assert response.status_code == 202
        assert response.headers["location"].endswith(response.json()["id"])
        return str(response.json()["id"])

    first = post("a", **{"idempotency-key": "order-7"})
    assert post("a", **{"idempotency-key": "order-7"}) == first
    others = [post("a", **{"idempotency-key": "order-8"}), post("b", **{"idempotency-key": "order-7"}), post("b")]
    assert len({first, *others}) == 4
    counts = re.findall(r'mien_jobs\{state="\w+"\} (\d)', client.get("/metrics").text)
    assert sum(map(int, counts)) == 4
    empty = {"x-api-key": "b", "idempotency-key": ""}
    problem(client.post("/v1/jobs", files=[("images", ("a.png", PHOTO))], headers=empty), 422, "invalid-request")


def test_two_uploads_at_once_with_one_idempotency_key_make_one_job(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings())
    slow, fast = (jobs.begin_upload("a", "order-7") for _ in range(2))
    job = jobs.submit(fast, {}, JobOptions())
    assert jobs.submit(slow, {}, JobOptions()) == job
    assert not slow.exists()
    others = [jobs.begin_upload(client, key) for client, key in (("a", None), ("a", "order-8"), ("b", "order-7"))]
    assert len({job.id, *(jobs.submit(folder, {}, JobOptions()).id for folder in others)}) == 4


@pytest.mark.parametrize(
    ("media_type", "body", "status", "file"),
    [
        ("application/x-zip-compressed", zipped(PHOTO), 202, "0.zip"),
        ("application/x-zip", zipped(PHOTO), 202, "0.zip"),
        ("application/octet-stream", zipped(PHOTO), 202, "0.zip"),
        ("application/octet-stream", zipped(PHOTO)[:-9], 422, None),
        ("application/octet-stream", b"\x00\x00\x00\x20ftypisom and more", 202, "0.mp4"),
        ("application/octet-stream", PHOTO, 415, None),
        ("video/mpeg", b"a video", 202, "0.mpg"),
        ("video/x-m4v", b"a video", 202, "0.m4v"),
        ("video/3gpp", b"a video", 202, "0.3gp"),
        ("text/plain", b"a text", 415, None),
    ],
)
def test_a_job_is_stored_under_a_name_that_labeling_reads(
    connect: Connect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    media_type: str,
    body: bytes,
    status: int,
    file: str | None,
) -> None:
    monkeypatch.setattr(Jobs, "start_next", lambda _: None)  # it stays in the queue
    response = connect(jobs_dir=tmp_path).post("/v1/jobs", content=body, headers={"content-type": media_type})
    assert response.status_code == status, response.text
    assert [path.name for path in tmp_path.glob("*/input/*")] == ([] if file is None else [file])


def test_only_keys_list_jobs(connect: Connect, tmp_path: Path) -> None:
    assert connect(jobs_dir=tmp_path).get("/v1/jobs").status_code == 401, "others may share the address"
