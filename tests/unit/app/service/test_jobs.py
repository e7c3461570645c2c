"""Queue of jobs on the disk."""

import asyncio
import errno
import os
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from mien.app.errors import NoSuchJob, QueueFull
from mien.app.labeling.records import Input, Result
from mien.app.service import jobs as jobs_module
from mien.app.service.jobs import Jobs
from mien.app.settings import Settings
from tests.support import encoded, gradient_image


def test_only_old_uploads_are_removed_and_never_the_folders_of_others(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings())
    upload, recent = jobs.begin_upload(), jobs.begin_upload()
    others = [tmp_path / name for name in ("photos", "lost+found", ".git", str(uuid.uuid4()))]
    for folder in others:
        (folder / "2024").mkdir(parents=True)
    for folder in (upload, *others):
        os.utime(folder, (old := time.time() - 7200, old))
    patient = Jobs(tmp_path, Settings(job_upload_timeout_s=7200))
    assert patient._next({}) is None
    assert upload.exists(), "it may still arrive"
    assert jobs._next({}) is None
    assert not upload.exists()
    assert recent.exists()
    assert all((folder / "2024").is_dir() for folder in others)


def test_a_job_too_many_is_told_which_limit_holds(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings(max_jobs=5))
    uploads = [jobs.begin_upload() for _ in range(4)]
    assert os.name == "nt" or uploads[0].stat().st_mode & 0o777 == 0o700, "only the service reads it"
    with pytest.raises(QueueFull, match="4 jobs are being uploaded"):
        jobs.begin_upload()
    for upload in uploads:
        jobs.submit(upload, "client", {}, [])
    jobs.submit(jobs.begin_upload(), "client", {}, [])
    with pytest.raises(QueueFull, match="5 jobs are kept"):
        jobs.begin_upload()


def test_a_job_on_a_full_disk_can_be_canceled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path, Settings())
    images = jobs.begin_upload() / "input"
    job = jobs.submit(images.parent, "client", {}, [])

    def write(path: Path, text: str) -> None:
        if images.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_text(text)

    monkeypatch.setattr(jobs_module, "write_atomic", write)
    jobs.cancel(job)
    assert jobs.get(job.id).state == "canceled"


@pytest.mark.parametrize(
    ("file", "name"),
    [("0.zip/a/1.jpg", "a/1.jpg"), ("000001.zip/a/1.jpg", "mine.zip/a/1.jpg"), ("000002.jpg", "me.jpg")],
)
def test_a_result_has_the_name_that_the_client_gave(tmp_path: Path, file: str, name: str) -> None:
    jobs = Jobs(tmp_path, Settings())
    job = jobs.submit(jobs.begin_upload(), "client", {"000001.zip": "mine.zip", "000002.jpg": "me.jpg"}, [])
    assert job.name_of(Result(Input(file, "file", b"", 1, ""), "no_face")) == name


@pytest.mark.parametrize("requests", [1, 2])
def test_a_job_that_is_canceled_as_it_starts_does_not_run(tmp_path: Path, requests: int) -> None:
    jobs = Jobs(tmp_path, Settings())
    job = jobs.submit(jobs.begin_upload(), "client", {}, [])

    class Served(dict[str, float]):
        """The second client cancels the job while it is chosen; two requests also delete it."""

        def get(self, _name: str, default: float) -> float:  # type: ignore[override]
            for _ in range(requests):
                jobs.cancel(jobs.get(job.id))
            return default

    assert jobs._next(Served()) is None
    if requests == 1:
        assert jobs.get(job.id).state == "canceled"
    else:
        assert not (tmp_path / job.id).exists()


def test_a_job_that_starts_as_it_is_canceled_keeps_its_images_until_it_has_stopped(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings())
    queued = jobs.submit(jobs.begin_upload(), "client", {}, [])
    assert jobs._next({}) is not None
    jobs.cancel(queued)
    assert jobs.get(queued.id).state == "running"
    assert (tmp_path / queued.id / "input").exists()
    assert (tmp_path / queued.id / "cancel").exists()


def test_a_job_that_ends_as_it_is_canceled_keeps_its_results(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings())
    running = replace(jobs.submit(jobs.begin_upload(), "client", {}, []), state="running")
    jobs._end(running, "done")
    jobs.cancel(running)
    assert jobs.get(running.id).state == "done"
    jobs.cancel(jobs.get(running.id))
    with pytest.raises(NoSuchJob):
        jobs.cancel(running)


def test_a_job_that_another_setting_interrupted_starts_again(tmp_path: Path, artifact: Path) -> None:
    settings = {"model": artifact, "detector": "builtin", "device": "cpu"}
    before = Jobs(tmp_path, Settings(**settings, detection_px=320))
    folder = before.begin_upload()
    (folder / "input" / "0.png").write_bytes(encoded(gradient_image(160, 120), "PNG"))
    job = before.submit(folder, "client", {}, [])
    before._end = lambda *_: None  # type: ignore[method-assign]  # the service is killed just before
    asyncio.run(before._label(job))
    after = Jobs(tmp_path, Settings(**settings))
    asyncio.run(after._label(job))
    assert after.progress(job) == ({}, 1), "before it begins"
    asyncio.run(after._label(job))
    assert after.get(job.id).state == "done"
    assert after.progress(job) == ({"no_face": 1}, 0)
