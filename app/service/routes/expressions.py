"""`POST /v1/expressions`: images in, faces with their expressions out."""

import asyncio
import time
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi import Query as InQuery
from pydantic import Field
from starlette.requests import ClientDisconnect

from mien.app.errors import BatchTooLarge, InvalidRequest, RequestTimeout
from mien.app.service import serialize
from mien.app.service.admission import Visit
from mien.app.service.problems import MEDIA_TYPE
from mien.app.service.routes import TheService
from mien.app.service.schemas import EncodedImages, ExpressionsResponse, FaceResult, Fraction, ImageResult, KnownFields
from mien.app.service.security import client_of
from mien.app.service.state import Labeled, Model, Refused, Result, Service, Treatment
from mien.app.service.uploads import FIELD, Upload, check_head, read_uploads
from mien.app.settings import Settings
from mien.data.contract.decode import formats
from mien.data.errors import MienError

T = TypeVar("T")
router = APIRouter()
_BINARY: Final = {"type": "string", "format": "binary", "minLength": 1}
_KINDS: Final = tuple(f"image/{name.lower()}" for name in formats())
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
        "application/json": {"schema": {"$ref": "#/components/schemas/EncodedImages"}},
        "application/octet-stream": {"schema": _BINARY},
    },
}
_PROBLEMS: Final = (400, 401, 408, 413, 415, 422, 429, 500, 503)


class Options(KnownFields):
    """Query parameters of a request."""

    min_face_px: Annotated[float, Field(ge=1, le=100_000)] | None = Field(
        None, description="leave out faces whose shorter side is smaller, pixels"
    )
    confidence_threshold: Fraction | None = Field(
        None, description="a confidence below it is `uncertain`; by default the model's own threshold"
    )
    top_k: Annotated[int, Field(ge=1, le=7)] = Field(1, description="number of expressions in `top`")
    model: str | None = Field(None, description="one of the loaded models; the first of `/v1/models` by default")
    aligned: bool = Field(False, description="the images are aligned faces of 112x112 pixels: only classify them")
    crops: bool = Field(False, description="return each face, aligned, as PNG in base64")
    annotate: bool = Field(False, description="return each image with its faces drawn in, as JPEG in base64")
    explain: bool = Field(False, description="return attention maps; 422 if the model has none")


def problem_docs(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the problems that a route may respond with."""
    schema = {"$ref": "#/components/schemas/ProblemDetails"}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


def describe_limits(document: dict[str, Any], settings: Settings) -> None:
    """Complete the API description with this deployment's limits."""
    operation = document["paths"]["/v1/expressions"]["post"]
    multipart = operation["requestBody"]["content"]["multipart/form-data"]["schema"]
    encoded = EncodedImages.model_json_schema(ref_template="#/components/schemas/{model}")
    for form in (multipart, encoded):
        form["properties"][FIELD]["maxItems"] = settings.max_images
    document["components"]["schemas"] |= {**encoded.pop("$defs"), "EncodedImages": encoded}
    (model,) = (parameter for parameter in operation["parameters"] if parameter["name"] == "model")
    model["schema"] = {"type": "string", "enum": list(settings.model_names), "default": settings.model_names[0]}


@router.post(
    "/v1/expressions",
    tags=["expressions"],
    summary="Find the faces in one or more images and label their expressions",
    response_model=ExpressionsResponse,
    responses=problem_docs(*_PROBLEMS),
    openapi_extra={"requestBody": _REQUEST_BODY},
)
async def expressions(
    request: Request,
    options: Annotated[Options, InQuery()],
    service: TheService,
) -> Response:
    """Label the faces of one or more images.

    Send `multipart/form-data` with parts named `images`, `application/json` with images in base64, or one image as
    the body, as `image/*` or `application/octet-stream`. An image that cannot be read has an `error`; if none can be
    read, the response is a problem. An image without a face has an empty list of `faces`. No image is stored.
    """
    model = service.model(options.model)
    _check_options(options, model)
    content_type = request.headers.get("content-type")
    check_head(content_type, request.headers.get("content-length"), service.settings)
    clock = _Clock()
    with service.admission.enter(client_of(request)) as visit:
        uploads = await _receive(request, content_type or "", service, visit)
        clock.lap("receive")
        images = await _until_gone(request, _work(service, uploads, options, clock))
    body = _response(model, images, options, clock)
    return Response(body.model_dump_json(), media_type="application/json")


def _check_options(options: Options, model: Model) -> None:
    if options.explain and model.pipeline.classifier.manifest.explain is None:
        name = model.pipeline.classifier.manifest.name
        raise InvalidRequest(f"explain: model {name} has no attention map; request without explain")


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
            return await read_uploads(request.stream(), content_type, service.settings, reserve=visit.reserve)
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
            treatment = Treatment(options.model, options.min_face_px, options.aligned, keep_image=options.annotate)
            results = await service.label(uploads, treatment)
            _check_any(results)
            images = [
                await _image_result(service, index, upload.name, result, options)
                for index, (upload, result) in enumerate(zip(uploads, results, strict=True))
            ]
            clock.lap("work")
            return images
    except TimeoutError:
        raise _too_late(len(uploads), clock, timeout_s) from None


def _too_late(images: int, clock: _Clock, timeout_s: float) -> MienError:
    """Error for a timeout: a batch that used most of the time itself would fail again, others may succeed later."""
    waited_ms = clock.laps_ms.get("wait")
    if images > 1 and waited_ms is not None and waited_ms < timeout_s * 500.0:
        return BatchTooLarge(f"{images} images were not finished within {timeout_s:g} s: send fewer in one request")
    return RequestTimeout(f"not finished within {timeout_s:g} s: try again later")


def _check_any(results: list[Result]) -> None:
    errors = [result.error for result in results if isinstance(result, Refused)]
    if len(errors) == len(results):
        raise errors[0]


async def _until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run the work, but stop if the client disconnects."""
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


def _response(model: Model, images: list[ImageResult], options: Options, clock: _Clock) -> ExpressionsResponse:
    classifier = model.pipeline.classifier
    return ExpressionsResponse(
        model=classifier.manifest.name,
        provider=classifier.provider,
        precision=classifier.precision,
        detector="none" if options.aligned else model.pipeline.detector.name,
        confidence_threshold=model.threshold(options.confidence_threshold),
        images=images,
        timings_ms=clock.total(),
    )


async def _image_result(
    service: Service, index: int, name: str | None, result: Result, options: Options
) -> ImageResult:
    if isinstance(result, Refused):
        error = serialize.problem_details(result.error)
        return ImageResult(index=index, name=name, width=None, height=None, faces=[], timings_ms={}, error=error)
    model, analysis = service.model(options.model), result.analysis
    threshold, drawn = model.threshold(options.confidence_threshold), None
    if result.image is not None:
        drawn = await service.in_thread(serialize.drawn, result.image, analysis, threshold)
    return ImageResult(
        index=index,
        name=name,
        width=analysis.width,
        height=analysis.height,
        faces=await _faces(service, model, result, options),
        timings_ms=serialize.stage_timings(analysis),
        annotated=drawn,
    )


async def _faces(service: Service, model: Model, result: Labeled, options: Options) -> list[FaceResult]:
    analysis, threshold = result.analysis, model.threshold(options.confidence_threshold)
    results = [serialize.face_result(face, threshold=threshold, top_k=options.top_k) for face in analysis.faces]
    if options.explain:
        maps = await service.in_thread(serialize.explanations, model.pipeline.classifier, analysis)
        results = [face.model_copy(update={"explanation": one}) for face, one in zip(results, maps, strict=True)]
    if options.crops:
        crops = await service.in_thread(serialize.crops, analysis)
        results = [face.model_copy(update={"crop": one}) for face, one in zip(results, crops, strict=True)]
    return results
