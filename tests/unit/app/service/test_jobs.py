"""Queue of jobs on the disk."""

import errno
import os
import time
import uuid
from pathlib import Path

import pytest

from mien.app.service import jobs as jobs_module
from mien.app.service.jobs import Jobs
from mien.app.settings import Settings


def test_only_old_uploads_are_removed_and_never_the_folders_of_others(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path, Settings())
    upload, recent = jobs.begin_upload(), jobs.begin_upload()
    others = [tmp_path / name for name in ("photos", "lost+found", ".git", str(uuid.uuid4()))]
    for folder in others:
        (folder / "2024").mkdir(parents=True)
    for folder in (upload, *others):
        os.utime(folder, (old := time.time() - 7200, old))
    assert jobs._next({}) is None
    assert not upload.exists()
    assert recent.exists()
    assert all((folder / "2024").is_dir() for folder in others)


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
