"""`/v1/jobs`: labeling of thousands of images or of a video in the background."""

import asyncio
import base64
import csv
import io
import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from pydantic import Field, TypeAdapter

from mien.app.errors import InvalidRequest, NoSuchJob, QueueFull, Unauthorized
from mien.app.labeling.images import CROPS, crop_path
from mien.app.labeling.journal import NoJournal
from mien.app.labeling.records import Result
from mien.app.service.jobs import JOBS_PATH, Job, Jobs
from mien.app.service.keys import client_of, key_of
from mien.app.service.routes import UNIQUE_OPTIONS, HeldResponse, TheService, problem_docs
from mien.app.service.schemas import (
    FaceResult,
    ImageData,
    JobImage,
    JobList,
    JobOptions,
    JobResults,
    JobStatus,
    PageOptions,
)
from mien.app.service.uploads import BOXES, CONTAINERS, FIELD, save_uploads
from mien.data.contract import EIGHT_LABELS

router = APIRouter(prefix=JOBS_PATH, tags=["jobs"], dependencies=UNIQUE_OPTIONS)
_log = logging.getLogger(__name__)
_PAGE_BYTES: Final = 1_000_000
_CHUNK_BYTES: Final = 65_536
_TABLE: Final = ("name", "frame", "time_s", "face", "x", "y", "width", "height", "label", "confidence", "uncertain")
_CURSOR: Final = TypeAdapter(tuple[str, Annotated[int, Field(ge=-1, lt=2**63)]])  # name and frame, as in the journal
_FILE: Final = {"type": "string", "format": "binary"}
_BODY: Final = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": [FIELD],
                "properties": {
                    FIELD: {"type": "array", "minItems": 1, "items": _FILE},
                    BOXES: {**_FILE, "description": "CSV or COCO file with faces to label instead of detected ones"},
                },
            }
        },
        **{kind: {"schema": _FILE} for kind in CONTAINERS},
    },
}


async def _jobs(service: TheService) -> Jobs:
    assert service.jobs is not None, "the routes exist only with jobs"  # noqa: S101
    return service.jobs


TheJobs = Annotated[Jobs, Depends(_jobs)]


async def _own(job_id: str, request: Request, jobs: TheJobs) -> Job:
    """A job of this client; without keys, its id is enough. Raises: NoSuchJob."""
    job = await asyncio.to_thread(jobs.get, job_id)
    if key_of(request) is not None and job.client != client_of(request):
        raise NoSuchJob(f"no job {job_id[:40]}: it has expired, or was deleted")
    return job


OwnJob = Annotated[Job, Depends(_own)]


@router.post(
    "",
    status_code=202,
    summary="Label many images, a zip file or a video",
    responses=problem_docs(401, 403, 408, 413, 415, 422, 429, 503),
    openapi_extra={"requestBody": _BODY},
)
async def create_job(
    request: Request,
    response: Response,
    options: Annotated[JobOptions, Query()],
    service: TheService,
    jobs: TheJobs,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> JobStatus:
    """Store the images, and label them in the background; the response names the job.

    A repeated request with the same `Idempotency-Key` gets the job of the first one.
    """
    service.labeler(options.model)
    client = client_of(request)
    if idempotency_key and (job := await asyncio.to_thread(jobs.repeated, client, idempotency_key)) is not None:
        response.headers["Location"] = f"{JOBS_PATH}/{job.id}"
        return await asyncio.to_thread(_status, jobs, job)
    with service.admission.admit(client):
        try:
            folder = await asyncio.to_thread(jobs.begin_upload, client, idempotency_key)
            try:
                names = await save_uploads(request.headers, request.stream(), service.settings, folder / "input")
                job = await asyncio.to_thread(jobs.submit, folder, names, options)
            except BaseException:
                await asyncio.to_thread(jobs.discard, folder)
                raise
        except (OSError, sqlite3.Error) as error:  # such as a full disk
            _log.error("a job cannot be stored: %s", error)
            reason = getattr(error, "strerror", None) or error
            raise QueueFull(f"the job cannot be stored: {reason}. Try again later") from error
    response.headers["Location"] = f"{JOBS_PATH}/{job.id}"
    return await asyncio.to_thread(_status, jobs, job)


@router.get("", summary="Jobs of an API key", responses=problem_docs(401))
async def list_jobs(request: Request, jobs: TheJobs) -> JobList:
    """The jobs that were created with keys of the same name, the newest first."""
    if (client := key_of(request)) is None:
        raise Unauthorized("a list of jobs needs API keys: others may share this address")
    return JobList(jobs=await asyncio.to_thread(_statuses, jobs, client))


@router.get("/{job_id}", summary="Progress of a job", responses=problem_docs(401, 404))
async def job(job: OwnJob, jobs: TheJobs) -> JobStatus:
    """State and progress."""
    return await asyncio.to_thread(_status, jobs, job)


@router.get(
    "/{job_id}/results",
    summary="Results of a job so far",
    response_model=JobResults,
    responses={
        200: {"content": {kind: {"schema": {"type": "string"}} for kind in ("application/x-ndjson", "text/csv")}},
        **problem_docs(401, 404, 422, 429, 503),
    },
)
async def job_results(
    job: OwnJob, request: Request, page: Annotated[PageOptions, Query()], service: TheService, jobs: TheJobs
) -> Response:
    """Results sorted by name and frame, from a cursor: a page, or all of them, one JSON object or CSV row per line.

    While the job runs, further results may sort before the cursor.
    """
    after = _position(page.after)
    if page.format == "json":
        return Response(await asyncio.to_thread(_page, jobs, job, after, page.limit), media_type=page.media_type)
    images, labels = _images(jobs, job, after), await asyncio.to_thread(_labels, jobs, job)
    lines = _csv_rows(images, labels) if page.format == "csv" else _json_lines(images)
    with ExitStack() as cleanup:
        cleanup.enter_context(service.admission.stream(client_of(request)))
        return HeldResponse(_chunks(lines), page.media_type, cleanup.pop_all())


@router.delete("/{job_id}", status_code=204, summary="Cancel or delete a job", responses=problem_docs(401, 403, 404))
async def cancel_job(job: OwnJob, jobs: TheJobs) -> None:
    """Stop a job, and keep the results so far; delete a job that has ended, with its results."""
    await asyncio.to_thread(jobs.cancel, job)


def _status(jobs: Jobs, job: Job) -> JobStatus:
    counts, remaining = jobs.progress(job)
    return JobStatus(id=job.id, state=job.state, images=counts, remaining=remaining, reason=job.reason)


def _statuses(jobs: Jobs, client: str) -> list[JobStatus]:
    statuses = []
    for job in jobs.of_client(client):
        with suppress(NoSuchJob):  # its results cannot be read
            statuses.append(_status(jobs, job))
    return statuses


def _images(jobs: Jobs, job: Job, after: tuple[str, int] | None) -> Iterator[tuple[JobImage, str]]:
    """Results after a position, each with the cursor behind it; runs in a thread."""
    names = jobs.names(job)
    try:
        journal = jobs.journal(job)
    except NoJournal:
        return
    with closing(journal):
        crops = journal.out if journal.has_images(CROPS) else None
        for result in journal.images(after=after):
            cursor = json.dumps([result.input.name, result.input.frame]).encode()
            yield _image(names, result, job.top_k, crops), base64.urlsafe_b64encode(cursor).decode()


def _labels(jobs: Jobs, job: Job) -> tuple[str, ...]:
    """The expressions, and the classes of the model of a job."""
    try:
        journal = jobs.journal(job)
    except NoJournal:
        return EIGHT_LABELS
    with closing(journal):
        return tuple(dict.fromkeys((*EIGHT_LABELS, *journal.expressions)))


def _position(cursor: str | None) -> tuple[str, int] | None:
    """Name and frame of a cursor. Raises: InvalidRequest."""
    if cursor is None:
        return None
    try:
        return _CURSOR.validate_json(base64.urlsafe_b64decode(cursor))
    except ValueError as error:
        raise InvalidRequest("after: expected the value of `next` of an earlier page") from error


def _page(jobs: Jobs, job: Job, after: tuple[str, int] | None, limit: int) -> str:
    """A page of results as JSON, of at most `limit` images and about a megabyte."""
    texts, size, last, more = list[str](), 0, "", None
    for image, cursor in _images(jobs, job, after):
        if len(texts) == limit or size > _PAGE_BYTES:
            more = last
            break
        texts.append(image.model_dump_json())
        size, last = size + len(texts[-1]), cursor
    return f'{{"state": {json.dumps(job.state)}, "images": [{",".join(texts)}], "next": {json.dumps(more)}}}'


def _json_lines(images: Iterator[tuple[JobImage, str]]) -> Iterator[str]:
    for image, _ in images:
        yield f"{image.model_dump_json()}\n"


def _csv_rows(images: Iterator[tuple[JobImage, str]], labels: tuple[str, ...]) -> Iterator[str]:
    """One row per face, and one for an image without a face."""
    text = io.StringIO()
    columns = [*_TABLE, *(f"p_{label}" for label in labels), "reasons", "reason", "agreement"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for image, _ in images:
        rows: list[dict[str, object]] = [
            {
                "face": number,
                **face.model_dump(include={"label", "confidence", "agreement"}),
                **face.box.model_dump(),
                **{f"p_{label}": probability for label, probability in face.probabilities.items()},
                "uncertain": str(face.uncertain).lower(),
                "reasons": " ".join(face.reasons),
            }
            for number, face in enumerate(image.faces)
        ]
        fixed = image.model_dump(include={"name", "frame", "time_s", "reason"})
        writer.writerows(fixed | row for row in rows or [{}])
        yield text.getvalue()
        text.seek(0)
        text.truncate()
    yield text.getvalue()


def _chunks(lines: Iterator[str]) -> Iterator[str]:
    """Join lines, because each step of a stream changes the thread."""
    joined, size = list[str](), 0
    for line in lines:
        joined.append(line)
        size += len(line)
        if size > _CHUNK_BYTES:
            yield "".join(joined)
            joined, size = [], 0
    yield "".join(joined)


def _image(names: dict[str, str], result: Result, top_k: int, out: Path | None) -> JobImage:
    """One image; its faces have the crops in the folder `out`, if it is given."""
    item = result.input
    crops: list[ImageData | None] = [None] * len(result.faces)
    if out is not None:
        crops = [_crop(out / crop_path(item.name, item.frame, face.index)) for face in result.faces]
    return JobImage(
        name=client_name(names, item.name),
        frame=result.frame,
        time_s=item.time_s,
        width=result.width,
        height=result.height,
        faces=[FaceResult.of(face, top_k=top_k, crop=crop) for face, crop in zip(result.faces, crops, strict=True)],
        reason=result.reason,
    )


def _crop(path: Path) -> ImageData | None:
    """A crop that labeling has written; None if it was deleted."""
    try:
        return ImageData.of(path.read_bytes())
    except FileNotFoundError:
        return None


def client_name(names: dict[str, str], name: str) -> str:
    """The client's name of a result; that of a member is below the name of its archive, if that has one."""
    first, _, member = name.partition("/")
    if first not in names:
        return member or first
    return f"{names[first]}/{member}" if member else names[first]
