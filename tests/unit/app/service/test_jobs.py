"""Queue of jobs on the disk."""

import os
import time
import uuid
from pathlib import Path

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
