"""`/v1/jobs`: labeling of thousands of images or of a video in the background."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from mien.app.errors import NoSuchJob, QueueFull, Unauthorized
from mien.app.labeling.records import Result
from mien.app.service import serialize
from mien.app.service.jobs import ENDED, JOBS_PATH, Job, Jobs
from mien.app.service.keys import client_of, key_of
from mien.app.service.routes import TheService, check_unique
from mien.app.service.routes.expressions import problem_docs
from mien.app.service.schemas import JobImage, JobOptions, JobResults, JobStatus, PageOptions
from mien.app.service.state import Service
from mien.app.service.uploads import CONTAINERS, FIELD, save_uploads

router = APIRouter(prefix=JOBS_PATH, tags=["jobs"])
_log = logging.getLogger(__name__)
_EVENTS_S: Final = 0.5
_COMMENT_S: Final = 15.0
_FILE: Final = {"type": "string", "format": "binary"}
_BODY: Final = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {"type": "object", "properties": {FIELD: {"type": "array", "minItems": 1, "items": _FILE}}}
        },
        **{kind: {"schema": _FILE} for kind in CONTAINERS},
    },
}


@router.post(
    "",
    status_code=202,
    summary="Label many images, a zip file or a video",
    responses=problem_docs(401, 408, 413, 415, 422, 429, 503),
    openapi_extra={"requestBody": _BODY},
)
async def create_job(
    request: Request, response: Response, options: Annotated[JobOptions, Query()], service: TheService
) -> JobStatus:
    """Store the images, and label them in the background; the response names the job."""
    check_unique(request)
    jobs = _jobs(service)
    with service.admission.admit(client_of(request)):
        try:
            folder = await asyncio.to_thread(jobs.begin_upload)
            try:
                names = await save_uploads(request.headers, request.stream(), service.settings, folder / "input")
                job = await asyncio.to_thread(jobs.submit, folder, client_of(request), names, options.arguments())
            except BaseException:
                await asyncio.to_thread(jobs.discard, folder)
                raise
        except OSError as error:  # such as a full disk
            _log.error("a job cannot be stored: %s", error)
            raise QueueFull(f"the job cannot be stored: {error.strerror}. Try again later") from error
    response.headers["Location"] = f"{JOBS_PATH}/{job.id}"
    return await _status(jobs, job)


@router.get("/{job_id}", summary="Progress of a job", responses=problem_docs(401, 404))
async def job(job_id: str, request: Request, service: TheService) -> JobStatus:
    """State and progress."""
    return await _status(_jobs(service), await _own(request, service, job_id))


@router.get("/{job_id}/results", summary="Results of a job so far", responses=problem_docs(401, 404, 422))
async def job_results(
    job_id: str, request: Request, page: Annotated[PageOptions, Query()], service: TheService
) -> JobResults:
    """A page of the results, sorted by name and frame; while the job runs, further ones may sort in between."""
    check_unique(request)
    job = await _own(request, service, job_id)
    results = await asyncio.to_thread(_jobs(service).results, job, page.offset, page.limit)
    return JobResults(state=job.state, images=[_image(job, result) for result in results])


@router.get(
    "/{job_id}/events",
    summary="Progress of a job as server-sent events",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}, **problem_docs(401, 404, 429)},
)
async def job_events(job_id: str, request: Request, service: TheService) -> Response:
    """An event `progress` at each change, until the job has ended."""
    await _own(request, service, job_id)
    with ExitStack() as place:
        place.enter_context(service.admission.stream(client_of(request)))
        return _EventStream(_events(request, service, job_id), place.pop_all())


class _EventStream(StreamingResponse):
    """Server-sent events, which keep a place among the streams."""

    def __init__(self, events: AsyncIterator[str], place: ExitStack) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._place:
            await super().__call__(scope, receive, send)


@router.delete("/{job_id}", status_code=204, summary="Cancel or delete a job", responses=problem_docs(401, 404))
async def cancel_job(job_id: str, request: Request, service: TheService) -> None:
    """Stop a job, and keep the results so far; delete a job that has ended, with its results."""
    await asyncio.to_thread(_jobs(service).cancel, await _own(request, service, job_id))


def _jobs(service: Service) -> Jobs:
    assert service.jobs is not None, "the routes exist only with jobs"  # noqa: S101
    return service.jobs


async def _own(request: Request, service: Service, job_id: str) -> Job:
    """A job of this client; without keys, its id is enough. Raises: NoSuchJob."""
    job = await asyncio.to_thread(_jobs(service).get, job_id)
    if key_of(request) is not None and job.client != client_of(request):
        raise NoSuchJob(f"no job {job_id[:40]}: it has expired, or was deleted")
    return job


async def _status(jobs: Jobs, job: Job) -> JobStatus:
    counts, remaining = await asyncio.to_thread(jobs.progress, job)
    return JobStatus(id=job.id, state=job.state, images=counts, remaining=remaining)


def _image(job: Job, result: Result) -> JobImage:
    return JobImage(
        name=job.name_of(result),
        frame=result.frame,
        time_s=result.input.time_s,
        width=result.width,
        height=result.height,
        faces=[serialize.face_result(face) for face in result.faces],
        reason=result.reason,
    )


async def _events(request: Request, service: Service, job_id: str) -> AsyncIterator[str]:
    sent, sent_s = None, 0.0
    while not service.draining:
        try:
            status = await _status(_jobs(service), await _own(request, service, job_id))
        except (NoSuchJob, Unauthorized):  # deleted meanwhile, or its key was removed
            return
        if status != sent:
            sent, sent_s = status, time.monotonic()
            yield f"event: progress\ndata: {status.model_dump_json()}\n\n"
        elif time.monotonic() - sent_s > _COMMENT_S:
            sent_s = time.monotonic()
            yield ":\n\n"  # so that proxies keep the connection
        if status.state in ENDED:
            return
        await asyncio.sleep(_EVENTS_S)
