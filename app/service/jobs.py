"""Jobs: thousands of images or a video, labeled in the background by `mien label` from a queue on the disk.

`MIEN_JOBS_DIR` has a table of all jobs, and a folder per job: `input/` until the job has ended, and `out/` with the
journal of labeling, from which progress and results are read. Therefore a job survives a restart and continues where it
was. One process of all workers holds the lock and runs one job at a time, at low priority, in a process of its own.
"""

import asyncio
import errno
import json
import logging
import os
import shutil
import sqlite3
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_args

import filelock

from mien.app.errors import NoSuchJob, QueueFull, SettingsError
from mien.app.labeling.files import OutputRefused
from mien.app.labeling.images import CROPS
from mien.app.labeling.journal import Journal, NoJournal, open_journal
from mien.app.service.schemas import JobOptions, JobState
from mien.app.service.uploads import BOXES_FILE
from mien.app.settings import Settings, environment

JOBS_PATH: Final = "/v1/jobs"
ENDED: Final = ("done", "failed", "canceled")
_POLL_S: Final = 0.3
_EXPIRY_INTERVAL_S: Final = 60.0
_MAX_UPLOADS: Final = 4
_MAX_KILLS: Final = 2
# Exit codes of `mien label`: all is labeled, or some images have errors; stopped, or still running after a kill
_DONE: Final = (0, 3)
_AGAIN: Final = (4, 5)
_FAILED: Final = 1
_KILLED: Final = -9  # by SIGKILL, as the kernel does for lack of memory
_CROP_BYTES: Final = 40_000  # of a PNG of 112x112 pixels, at most
# age_s: seconds in this state while a service ran, which a changed clock does not change
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS jobs(
  id TEXT PRIMARY KEY, client TEXT NOT NULL, created REAL NOT NULL, state TEXT NOT NULL, reason TEXT,
  arguments TEXT NOT NULL DEFAULT '[]', top_k INTEGER NOT NULL DEFAULT 1, names TEXT NOT NULL DEFAULT '{}',
  kills INTEGER NOT NULL DEFAULT 0, cancel INTEGER NOT NULL DEFAULT 0, age_s REAL NOT NULL DEFAULT 0,
  idempotency_key TEXT) WITHOUT ROWID
"""
_COLUMNS: Final = "id, client, state, reason, arguments, top_k, kills, cancel"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job:
    """One job; `arguments` are options of `mien label`, as JSON."""

    id: str
    client: str
    state: JobState
    reason: str | None
    arguments: str
    top_k: int
    kills: int
    cancel: bool


class Jobs:
    """The jobs of a folder, which all worker processes share."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Create the folder and the table, if they are missing. Raises: SettingsError."""
        self._folder, self._settings = folder, settings
        self._uploads: dict[str, filelock.FileLock] = {}  # held while they arrive, by the name of their folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(errno.EACCES, "not writable")
            with self._table() as table:
                table.execute(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise SettingsError(f"MIEN_JOBS_DIR={folder}: {reason}. Choose a writable folder") from error

    @contextmanager
    def _table(self) -> Iterator[sqlite3.Connection]:
        """A transaction, which other threads and processes wait for."""
        database = sqlite3.connect(self._folder / "jobs.sqlite3", timeout=30.0, isolation_level=None)
        with closing(database), database:
            database.execute("BEGIN IMMEDIATE")
            yield database

    def begin_upload(self, client: str, idempotency_key: str | None = None) -> Path:
        """A new folder for the files of a job; `submit` or `discard` it. Raises: QueueFull."""
        folder = self._folder / uuid.uuid4().hex
        with self._table() as table:
            for where, limit, what in (
                ("state='uploading'", _MAX_UPLOADS, "being uploaded: try again in a moment"),
                ("1", self._settings.max_jobs, "kept: delete one, or try again later"),
            ):
                count = f"SELECT COUNT(*), COUNT(CASE client WHEN ? THEN 1 END) FROM jobs WHERE {where}"  # noqa: S608
                total, own = table.execute(count, (client,)).fetchone()
                if own >= limit - total:  # one client may use half of what is left
                    raise QueueFull(f"{total} of {limit} jobs, {own} of them yours, are {what}")
            table.execute(
                "INSERT INTO jobs(id, client, created, state, idempotency_key) VALUES(?, ?, ?, 'uploading', ?)",
                (folder.name, client, time.time(), idempotency_key),
            )
            folder.mkdir(mode=0o700)  # in the transaction, which a full disk rolls back
            (folder / "input").mkdir()
            self._uploads[folder.name] = self._upload_lock(folder.name)
            self._uploads[folder.name].acquire()
        return folder

    def _upload_lock(self, job_id: str) -> filelock.FileLock:
        """The lock of an upload, which ends with the process that receives it."""
        return filelock.FileLock(self._folder / job_id / "upload.lock", blocking=False, thread_local=False)

    def _release(self, folder: Path) -> None:
        if (lock := self._uploads.pop(folder.name, None)) is not None:
            lock.release()

    def discard(self, folder: Path) -> None:
        """Remove an upload that failed."""
        self._release(folder)
        shutil.rmtree(folder, ignore_errors=True)
        with self._table() as table:
            table.execute("DELETE FROM jobs WHERE id=?", (folder.name,))

    def submit(self, folder: Path, names: dict[str, str], options: JobOptions) -> Job:
        """Put a job into the queue; `names` maps its files to the names that the client gave.

        Returns: the job; the earlier one, if another upload with its idempotency key has arrived meanwhile.
        """
        arguments = options.arguments(self._settings)
        with self._table() as table:
            earlier = table.execute(
                "SELECT earlier.id FROM jobs JOIN jobs AS earlier USING (client, idempotency_key) "
                "WHERE jobs.id=? AND earlier.state != 'uploading'",
                (folder.name,),
            ).fetchone()
            if earlier is None:
                table.execute(
                    "UPDATE jobs SET state='queued', age_s=0, names=?, arguments=?, top_k=? WHERE id=?",
                    (json.dumps(names), json.dumps(arguments), options.top_k, folder.name),
                )
        if earlier is not None:
            self.discard(folder)
            return self.get(earlier[0])
        self._release(folder)
        return self.get(folder.name)

    def get(self, job_id: str) -> Job:
        """A job by its id. Raises: NoSuchJob."""
        jobs = self._select("id=? AND state != 'uploading'", job_id)
        if not jobs:
            raise NoSuchJob(f"no job {job_id[:40]}: it has expired, or was deleted")
        return jobs[0]

    def of_client(self, client: str) -> list[Job]:
        """The jobs of a client, the newest first."""
        return self._select("client=? AND state != 'uploading' ORDER BY created DESC", client)

    def states(self) -> dict[str, int]:
        """Number of jobs by state."""
        with self._table() as table:
            counts = dict(table.execute("SELECT state, COUNT(*) FROM jobs GROUP BY state").fetchall())
        return {state: counts.get(state, 0) for state in get_args(JobState)}

    def repeated(self, client: str, idempotency_key: str) -> Job | None:
        """The job that a client has created with this idempotency key, if any."""
        jobs = self._select("client=? AND idempotency_key=? AND state != 'uploading'", client, idempotency_key)
        return jobs[0] if jobs else None

    def _select(self, where: str, *values: str) -> list[Job]:
        with self._table() as table:
            rows = table.execute(f"SELECT {_COLUMNS} FROM jobs WHERE {where}", values)  # noqa: S608  # constants
            return [Job(*row) for row in rows]

    def cancel(self, job: Job) -> None:
        """Stop a job and keep what is labeled; remove a job that has ended. Raises: NoSuchJob, if it is removed."""
        if job.state in ENDED:
            self.discard(self._folder / job.id)
            return
        with self._table() as table:
            table.execute("UPDATE jobs SET cancel=1 WHERE id=? AND state='running'", (job.id,))
            queued = table.execute(
                "UPDATE jobs SET state='canceled', age_s=0 WHERE id=? AND state='queued'", (job.id,)
            ).rowcount
        if queued:
            shutil.rmtree(self._folder / job.id / "input", ignore_errors=True)
        self.get(job.id)

    def progress(self, job: Job) -> tuple[dict[str, int], int]:
        """Images per status, and how many remain; a zip file or video counts as one until it is read."""
        counts, remaining = dict[str, int](), 0
        with suppress(NoJournal), closing(self.journal(job)) as journal:
            counts, remaining = journal.counts(), journal.remaining()
        if not counts and not remaining and job.state not in ENDED:  # its files are not listed yet
            remaining = len(list((self._folder / job.id / "input").glob("*")))
        return counts, remaining

    def journal(self, job: Job) -> Journal:
        """The journal of a job. Raises: NoJournal, before it begins; NoSuchJob, if it has ended and cannot be read."""
        try:
            return open_journal(self._folder / job.id / "out")
        except OutputRefused as error:  # damaged, or of another version: labeling starts again
            if job.state not in ENDED:
                raise NoJournal(str(error)) from error
            _log.error("job %s: %s", job.id, error)  # without the traceback
            raise NoSuchJob(f"job {job.id}: its results cannot be read any more. Send its images again") from error

    def names(self, job: Job) -> dict[str, str]:
        """The names that the client gave, by file name."""
        with self._table() as table:
            (names,) = table.execute("SELECT names FROM jobs WHERE id=?", (job.id,)).fetchone() or ("{}",)
        return dict(json.loads(names))

    async def run(self) -> None:
        """Run jobs until canceled, in the one process that gets the lock."""
        lock = filelock.FileLock(self._folder / "lock", blocking=False)
        while True:
            try:
                with lock:
                    await self._run_jobs()
            except filelock.Timeout:
                await asyncio.sleep(_POLL_S)
            except (OSError, sqlite3.Error):
                _log.exception("jobs cannot be run")
                await asyncio.sleep(10 * _POLL_S)

    async def _run_jobs(self) -> None:
        expiring = asyncio.create_task(self._expire_regularly())
        try:
            while True:
                job = await asyncio.to_thread(self.start_next)
                if job is None:
                    await asyncio.sleep(_POLL_S)
                else:
                    await self.process(job)
        finally:
            expiring.cancel()

    async def _expire_regularly(self) -> None:
        interval_s = min(_EXPIRY_INTERVAL_S, self._settings.job_expiry_s / 10)
        before_s = time.monotonic()
        while True:
            now_s = time.monotonic()
            try:
                await asyncio.to_thread(self.expire, now_s - before_s)
            except (OSError, sqlite3.Error):
                _log.exception("jobs cannot expire")
            before_s = now_s
            await asyncio.sleep(interval_s)

    def expire(self, passed_s: float) -> None:
        """Let all jobs age, and remove those that ended long ago, and uploads of a process that was killed."""
        with self._table() as table:
            table.execute("UPDATE jobs SET age_s = age_s + ?", (passed_s,))
            ended = "SELECT id FROM jobs WHERE state IN ('done', 'failed', 'canceled') AND age_s > ?"
            expired = [job_id for (job_id,) in table.execute(ended, (self._settings.job_expiry_s,))]
            for (job_id,) in table.execute("SELECT id FROM jobs WHERE state='uploading'").fetchall():
                with suppress(filelock.Timeout), self._upload_lock(job_id):
                    expired.append(job_id)
        for job_id in expired:
            self.discard(self._folder / job_id)

    def start_next(self) -> Job | None:
        """Start the next job; one that is already running was interrupted by the end of its process."""
        with self._table() as table:
            row = table.execute(
                f"SELECT {_COLUMNS} FROM jobs WHERE state IN ('queued', 'running') "  # noqa: S608  # constants
                "ORDER BY state='queued', created LIMIT 1"
            ).fetchone()
            if row is not None:
                table.execute("UPDATE jobs SET state='running' WHERE id=?", (row[0],))
        return None if row is None else Job(*row)

    async def process(self, job: Job) -> None:
        """Run `mien label` until it ends or the job is canceled, and record how it ended."""
        folder = self._folder / job.id
        resumed = (folder / "out").exists()
        command = [sys.executable, "-m", "mien", "label", str(folder / "input"), "--out", str(folder / "out")]
        command += ["--write", "csv", "--limit", str(await asyncio.to_thread(self._limit, job)), "--quiet"]
        command += json.loads(job.arguments)
        command += ["--boxes", str(folder / BOXES_FILE)] if (folder / BOXES_FILE).exists() else []
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
        output = asyncio.ensure_future(process.communicate())
        ended: tuple[JobState, str | None] | None = None
        try:
            while not output.done():
                await asyncio.wait({output}, timeout=_POLL_S)
                if ended is None and process.returncode is None:
                    ended = await asyncio.to_thread(self._ended_early, job)
                    if ended is not None:
                        process.terminate()  # once: a second signal aborts the images in progress
        except BaseException:  # such as a canceled task: the service stops; the job continues at the next start
            if process.returncode is None:
                process.terminate()
            await output
            raise
        if ended is not None:
            state, reason = ended
            _, remaining = await asyncio.to_thread(self.progress, job)
            await asyncio.to_thread(self.end, job, state, reason if remaining else None)
        elif process.returncode in _AGAIN:
            await asyncio.sleep(_POLL_S)
        else:
            stderr = output.result()[1].decode(errors="replace")[-1000:].strip()
            await asyncio.to_thread(self._record, job, process.returncode, stderr, resumed=resumed)

    def _limit(self, job: Job) -> int:
        """Images of a job to label, less those before a restart; 1 at least, as `mien label` requires."""
        counts, _ = self.progress(job)
        return max(1, self._settings.max_job_images - sum(counts.values()) + counts.get("skipped", 0))

    def _ended_early(self, job: Job) -> tuple[JobState, str | None] | None:
        """State and reason of a running job that must stop: it was canceled, or its crops fill the disk."""
        if self.get(job.id).cancel:
            return "canceled", None
        limit = self._settings.max_job_bytes // _CROP_BYTES
        with suppress(NoJournal), closing(self.journal(job)) as journal:
            if journal.has_images(CROPS) and journal.labels().total() > limit:
                why = f"crops count as {_CROP_BYTES // 1000} kB each (MIEN_MAX_JOB_BYTES)"
                return "done", f"only the images before {limit} faces, because {why}"
        return None

    def _record(self, job: Job, code: int | None, stderr: str, *, resumed: bool) -> None:
        """Record how `mien label` ended; a job that has not ended is started again."""
        killed = code == _KILLED
        if code in _DONE:
            self.end(job, "done", self._truncated(job))
        elif code == _FAILED and resumed:  # labeled with another model, setting or version before
            _log.warning("job %s starts again: %s", job.id, stderr)
            shutil.rmtree(self._folder / job.id / "out")
        elif killed and job.kills + 1 < _MAX_KILLS:
            _log.warning("job %s was killed, probably for lack of memory, and continues", job.id)
            with self._table() as table:
                table.execute("UPDATE jobs SET kills = kills + 1 WHERE id=?", (job.id,))
        else:
            _log.error("job %s failed with exit code %s: %s", job.id, code, stderr)
            reason = "killed twice, probably for lack of memory" if killed else "see the log of the service"
            self.end(job, "failed", f"labeling failed: {reason}")

    def _truncated(self, job: Job) -> str | None:
        """The reason why some images of a job that is done are not labeled; None if all are."""
        _, remaining = self.progress(replace(job, state="done"))  # a zip file may have none
        limit = self._settings.max_job_images
        return f"only the first {limit} images were labeled (MIEN_MAX_JOB_IMAGES)" if remaining else None

    def end(self, job: Job, state: JobState, reason: str | None = None) -> None:
        """Record that a job has ended, and remove its images."""

        def update() -> None:
            with self._table() as table:
                table.execute("UPDATE jobs SET state=?, reason=?, age_s=0 WHERE id=?", (state, reason, job.id))

        images = self._folder / job.id / "input"
        try:
            update()
        except sqlite3.Error:  # a full disk: the images make room
            shutil.rmtree(images, ignore_errors=True)
            update()
        shutil.rmtree(images, ignore_errors=True)
