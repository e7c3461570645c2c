"""`POST /v1/expressions`: images in, faces with their expressions out."""

import asyncio
import time
from collections.abc import Coroutine
from http import HTTPStatus
from itertools import zip_longest
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import ClientDisconnect

from app import answers
from app.admission import Visit
from app.errors import InvalidRequest, RequestTimeout, problem_for
from app.problems import MEDIA_TYPE, problem_body
from app.routes import service_of
from app.schemas import ExpressionsResponse, ImageResult, ProblemDetails
from app.security import client_of
from app.service import Answer, Refused, Service
from app.upload import FIELD, Upload, check_head, read_uploads
from data.contract.decode import FORMATS

T = TypeVar("T")
router = APIRouter()
_BINARY: Final = {"type": "string", "format": "binary"}
_KINDS: Final = tuple(f"image/{name.lower()}" for name in FORMATS)
_REQUEST_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": [FIELD],
                "additionalProperties": False,
                "properties": {FIELD: {"type": "array", "minItems": 1, "items": _BINARY}},
            },
            "encoding": {FIELD: {"contentType": ", ".join(_KINDS)}},
        },
        **{kind: {"schema": _BINARY} for kind in _KINDS},
    },
}
_PROBLEMS: Final = (400, 401, 408, 413, 415, 422, 429, 500, 503)


class Options(BaseModel):
    """Query parameters of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_face_px: Annotated[float, Field(ge=1, le=100_000)] | None = Field(
        None, description="leave out faces whose shorter side is smaller, pixels"
    )
    confidence_threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        None, description="below it a label is `uncertain`; the model's own threshold when not given"
    )
    top_k: Annotated[int, Field(ge=1, le=7)] = Field(1, description="how many expressions `top` lists")
    annotate: bool = Field(False, description="return each picture with its faces drawn in, as JPEG in base64")
    explain: bool = Field(False, description="return what the model looked at; only where it can tell")


def problem_docs(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the problems that a route may answer."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


@router.post(
    "/v1/expressions",
    tags=["expressions"],
    summary="Find the faces of one or more images and read their expressions",
    response_model=ExpressionsResponse,
    responses=problem_docs(*_PROBLEMS),
    openapi_extra={"requestBody": _REQUEST_BODY},
)
async def expressions(
    request: Request,
    options: Annotated[Options, Query()],
    service: Annotated[Service, Depends(service_of)],
) -> Response:
    """Send `multipart/form-data` with parts named `images`, or one image as the body with an `image/*` type.

    A request none of whose images can be read is a problem; where some can be read, each other one carries its
    `error`. An image without a face has an empty list of `faces`. Nothing of an image is kept.
    """
    _check_options(options, service)
    content_type = request.headers.get("content-type")
    check_head(content_type, request.headers.get("content-length"), service.upload_limits)
    clock = _Clock()
    with service.admission.enter(client_of(request)) as visit:
        uploads = await _receive(request, content_type or "", service, visit)
        clock.lap("receive")
        images = await _until_gone(request, _work(service, uploads, options, clock))
    body = _response(service, images, options, clock)
    return Response(body.model_dump_json(), media_type="application/json")


def _check_options(options: Options, service: Service) -> None:
    if options.explain and service.pipeline.classifier.manifest.explain is None:
        name = service.pipeline.classifier.manifest.name
        raise InvalidRequest(
            f"explain: the model {name} has no graph that tells what it looked at; leave the option out"
        )


class _Clock:
    """Laps of one request in milliseconds."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.laps_ms: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps_ms[name] = round((now - self._last) * 1000.0, 2)
        self._last = now

    def total(self) -> dict[str, float]:
        return {**self.laps_ms, "total": round((time.perf_counter() - self._start) * 1000.0, 2)}


async def _receive(request: Request, content_type: str, service: Service, visit: Visit) -> list[Upload]:
    timeout_s = service.settings.body_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            return await read_uploads(request.stream(), content_type, service.upload_limits, reserve=visit.reserve)
    except TimeoutError:
        raise HTTPException(
            HTTPStatus.REQUEST_TIMEOUT,
            f"the body did not arrive within {timeout_s:g} s",
            headers={"Connection": "close"},
        ) from None


async def _work(service: Service, uploads: list[Upload], options: Options, clock: _Clock) -> list[ImageResult]:
    timeout_s = service.settings.request_timeout_s
    try:
        async with asyncio.timeout(timeout_s), service.admission.turn():
            clock.lap("wait")
            results = await service.answer(uploads, min_face_px=options.min_face_px, keep_image=options.annotate)
            _check_any(results)
            threshold = _threshold(service, options)
            images = [
                await _image_result(service, index, upload.name, result, threshold=threshold, options=options)
                for index, (upload, result) in enumerate(zip(uploads, results, strict=True))
            ]
            clock.lap("work")
            return images
    except TimeoutError:
        raise RequestTimeout(f"not done within {timeout_s:g} s: send fewer images at once, or try later") from None


def _check_any(results: list[Answer]) -> None:
    errors = [result.error for result in results if isinstance(result, Refused)]
    if len(errors) == len(results):
        raise errors[0]


def _threshold(service: Service, options: Options) -> float:
    if options.confidence_threshold is None:
        return service.pipeline.classifier.manifest.abstain_threshold
    return options.confidence_threshold


async def _until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work, but stop when the client leaves: its place is another's."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for future in (task, gone):
            future.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _response(service: Service, images: list[ImageResult], options: Options, clock: _Clock) -> ExpressionsResponse:
    classifier = service.pipeline.classifier
    return ExpressionsResponse(
        model=classifier.manifest.name,
        provider=classifier.provider,
        detector=service.pipeline.detector.name,
        confidence_threshold=_threshold(service, options),
        images=images,
        timings_ms=clock.total(),
    )


async def _image_result(
    service: Service, index: int, name: str | None, result: Answer, *, threshold: float, options: Options
) -> ImageResult:
    if isinstance(result, Refused):
        error = ProblemDetails.model_validate(problem_body(problem_for(result.error), str(result.error)))
        return ImageResult(index=index, name=name, width=None, height=None, faces=[], timings_ms={}, error=error)
    analysis = result.analysis
    drawn, told = None, []
    if result.image is not None:
        drawn = await service.in_thread(answers.drawn, result.image, analysis, threshold)
    if options.explain:
        told = await service.in_thread(answers.explanations, service.pipeline.classifier, analysis)
    return ImageResult(
        index=index,
        name=name,
        width=analysis.width,
        height=analysis.height,
        faces=[
            answers.face_result(face, threshold=threshold, top_k=options.top_k, told=one)
            for face, one in zip_longest(analysis.faces, told)
        ],
        timings_ms=answers.stage_timings(analysis),
        annotated=drawn,
    )
