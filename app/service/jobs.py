"""Jobs: thousands of images or a video, labeled in the background by `mien label` from a queue on the disk.

Each job is a folder of `MIEN_JOBS_DIR`: `job.json`, `input/` until the job has ended, and `out/` with the journal of
labeling, from which progress and results are read. Therefore a job survives a restart and continues where it was. One
process of all workers holds the lock and runs one job at a time, at low priority, in a process of its own.
"""

import asyncio
import errno
import json
import logging
import os
import re
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final

import filelock

from mien.app.errors import NoSuchJob, QueueFull, SettingsError
from mien.app.labeling.records import Result
from mien.app.labeling.view import NoJournal, View, open_view
from mien.app.service.schemas import JobState
from mien.app.settings import Settings, environment
from mien.data.atomic import write_atomic

JOBS_PATH: Final = "/v1/jobs"
ENDED: Final = ("done", "failed", "canceled")
_POLL_S: Final = 0.3
_MAX_UPLOADS: Final = 4
_UPLOAD_GRACE_S: Final = 3600.0
_ID: Final = re.compile("[0-9a-f]{12}4[0-9a-f]{19}")  # the hexadecimal digits of a random UUID
# Exit codes of `mien label`: all is labeled, or some images have errors; stopped, or still running after a kill
_DONE: Final = (0, 3)
_AGAIN: Final = (4, 5)
_FAILED: Final = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job; `names` maps its files to the names that the client gave."""

    id: str
    client: str
    created: float
    state: JobState = "queued"
    ended: float | None = None
    names: dict[str, str] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)

    def name_of(self, result: Result) -> str:
        """The client's name of a result; that of a member is below the name of its archive, if that has one."""
        first, _, member = result.input.name.partition("/")
        if first not in self.names:
            return member or first
        return f"{self.names[first]}/{member}" if member else self.names[first]


@lru_cache(maxsize=1_000)
def _read(path: Path, _version: tuple[int, int]) -> Job:
    """Read a `job.json`, once for each time that it was replaced: the queue is looked at several times a second."""
    return Job(**json.loads(path.read_text(encoding="utf-8")))


def create_folder(folder: Path) -> None:
    """Create the folder of jobs, if it is missing. Raises: SettingsError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, "not writable")
    except OSError as error:
        raise SettingsError(f"MIEN_JOBS_DIR={folder}: {error.strerror}. Choose a writable folder") from error


class Jobs:
    """The jobs of a folder, which all worker processes share."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder, self._settings = folder, settings
        self._uploads = 0
        # held to start or cancel a job: one process runs jobs, and any may cancel them
        self._starting = filelock.FileLock(folder / "starting.lock")

    def begin_upload(self) -> Path:
        """A new folder for the files of a job; `submit` or `discard` it. Raises: QueueFull."""
        if self._uploads >= _MAX_UPLOADS:
            raise QueueFull(f"{self._uploads} jobs are being uploaded: try again in a moment")
        if len(list(self._jobs())) + self._uploads >= self._settings.max_jobs:
            raise QueueFull(f"{self._settings.max_jobs} jobs are kept: delete one, or try again later")
        folder = self._folder / uuid.uuid4().hex
        folder.mkdir(mode=0o700)
        (folder / "input").mkdir()
        self._uploads += 1
        return folder

    def discard(self, folder: Path) -> None:
        """Remove an upload that failed."""
        self._uploads -= 1
        shutil.rmtree(folder, ignore_errors=True)

    def submit(self, folder: Path, client: str, names: dict[str, str], options: list[str]) -> Job:
        """Put a job into the queue."""
        job = Job(id=folder.name, client=client, created=time.time(), names=names, options=options)
        self._write(job)
        self._uploads -= 1
        return job

    def get(self, job_id: str) -> Job:
        """A job by its id. Raises: NoSuchJob."""
        try:
            path = self._folder / uuid.UUID(job_id).hex / "job.json"
            file = path.stat()
            return _read(path, (file.st_ino, file.st_mtime_ns))
        except (OSError, ValueError) as error:
            raise NoSuchJob(f"no job {job_id[:40]}: it has expired, or was deleted") from error

    def cancel(self, job: Job) -> None:
        """Stop a job and keep what is labeled; remove a job that has ended. Raises: NoSuchJob, if it is removed."""
        folder = self._folder / job.id
        if job.state in ENDED:
            shutil.rmtree(folder, ignore_errors=True)
            return
        with self._starting:
            state = self.get(job.id).state
            if state == "queued":
                self._end(job, "canceled")
            elif state == "running":  # and not ended meanwhile: it would be removed
                (folder / "cancel").touch()  # read by the process that runs it

    def progress(self, job: Job) -> tuple[dict[str, int], int]:
        """Images per status, and how many remain; a zip file or video counts as one until it is read."""
        counts, remaining = dict[str, int](), 0
        with suppress(NoJournal), closing(self._view(job)) as view:
            counts, remaining = view.counts(), view.remaining()
        if not counts and not remaining and job.state not in ENDED:  # its files are not listed yet
            remaining = len(list((self._folder / job.id / "input").glob("*")))
        return counts, remaining

    def results(self, job: Job, offset: int, limit: int) -> list[Result]:
        """Results so far, sorted by name and frame."""
        try:
            with closing(self._view(job)) as view:
                return list(islice(view.images(), offset, offset + limit))
        except NoJournal:
            return []

    def _view(self, job: Job) -> View:
        return open_view(self._folder / job.id / "out")

    def _jobs(self) -> Iterator[Job]:
        for folder in self._folder.iterdir():
            with suppress(NoSuchJob):
                yield self.get(folder.name)

    def _write(self, job: Job) -> None:
        write_atomic(self._folder / job.id / "job.json", json.dumps(asdict(job)))

    def _end(self, job: Job, state: JobState) -> None:
        ended = replace(job, state=state, ended=time.time())
        images = self._folder / job.id / "input"
        try:
            self._write(ended)
        except OSError:  # a full disk: the images make room
            shutil.rmtree(images, ignore_errors=True)
            self._write(ended)
        shutil.rmtree(images, ignore_errors=True)

    async def run(self) -> None:
        """Run jobs until canceled, in the one process that gets the lock."""
        lock = filelock.FileLock(self._folder / "lock", blocking=False)
        served: dict[str, float] = {}  # clients take turns
        while True:
            try:
                with lock:
                    while True:
                        job = await asyncio.to_thread(self._next, served)
                        if job is None:
                            await asyncio.sleep(_POLL_S)
                        else:
                            served[job.client] = time.monotonic()
                            await self._label(job)
            except filelock.Timeout:
                await asyncio.sleep(_POLL_S)
            except OSError:
                _log.exception("jobs cannot be run")
                await asyncio.sleep(10 * _POLL_S)

    def _next(self, served: dict[str, float]) -> Job | None:
        """Start the next job, after removing expired ones; a running one was interrupted by the end of its process."""
        now = time.time()
        jobs = []
        for folder in self._folder.iterdir():
            try:
                job = self.get(folder.name)
            except NoSuchJob:  # an upload, the lock, or a file or folder of others, which is kept
                expired = (
                    _ID.fullmatch(folder.name) is not None
                    and folder.is_dir()
                    and now - folder.stat().st_mtime > self._settings.job_upload_timeout_s + _UPLOAD_GRACE_S
                )
            else:
                expired = job.ended is not None and now - job.ended > self._settings.job_expiry_s
                if job.state not in ENDED:
                    jobs.append(job)
            if expired:
                shutil.rmtree(folder, ignore_errors=True)
        first = min(
            jobs, key=lambda job: (job.state == "queued", served.get(job.client, 0.0), job.created), default=None
        )
        if first is None:
            return None
        with self._starting, suppress(NoSuchJob):
            if self.get(first.id).state not in ENDED:  # not canceled meanwhile
                self._write(replace(first, state="running"))
                return first
        return None

    async def _label(self, job: Job) -> None:
        folder = self._folder / job.id
        resumed = (folder / "out").exists()
        command = [sys.executable, "-m", "mien", "label", str(folder / "input"), "--out", str(folder / "out")]
        command += ["--write", "csv", "--limit", str(self._settings.max_job_images), "--quiet", *job.options]
        if nice := shutil.which("nice"):
            command = [nice, *command]
        # limits that are set are kept: the others of `mien label` are for files of the user's own
        limits = self._settings.model_copy(update={"threads": 1})
        limits.model_fields_set.update({"max_bytes", "max_pixels"})
        process = await asyncio.create_subprocess_exec(
            *command,
            env=os.environ | {name: value for name, value in environment(limits).items() if value is not None},
            stderr=asyncio.subprocess.PIPE,
        )
        told = asyncio.ensure_future(process.communicate())
        try:
            while not told.done():
                await asyncio.wait({told}, timeout=_POLL_S)
                if (folder / "cancel").exists() and process.returncode is None:
                    process.terminate()
        except asyncio.CancelledError:  # the service stops; the job continues at the next start
            if process.returncode is None:
                process.terminate()
            await told
            raise
        canceled, code = (folder / "cancel").exists(), process.returncode
        if code in _AGAIN and not canceled:
            await asyncio.sleep(_POLL_S)
            return
        if code == _FAILED and resumed and not canceled:  # labeled with another model, setting or version before
            _log.warning("job %s starts again: %s", job.id, _last_words(told.result()[1]))
            await asyncio.to_thread(shutil.rmtree, folder / "out")
            return
        if code not in _DONE and not canceled:
            _log.error("job %s failed with exit code %s: %s", job.id, code, _last_words(told.result()[1]))
        await asyncio.to_thread(self._end, job, "canceled" if canceled else "done" if code in _DONE else "failed")


def _last_words(stderr: bytes) -> str:
    return stderr.decode(errors="replace")[-1000:].strip()
