"""`POST /v1/expressions`: images in, faces with their expressions out."""

import asyncio
import base64
import gzip
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from mien.app.errors import BatchTooLarge, CapacityError, InvalidRequest, RequestError, RequestTimeout
from mien.app.inference.image_guard import FILES_ONLY
from mien.app.inference.records import Photo
from mien.app.service import serialize
from mien.app.service.admission import Reservation
from mien.app.service.keys import client_of
from mien.app.service.problems import MEDIA_TYPE
from mien.app.service.routes import TheService, accepts_gzip, check_unique
from mien.app.service.schemas import EncodedImages, ExpressionsResponse, ImageResult, LabelOptions
from mien.app.service.state import Service
from mien.app.service.uploads import BOXES, FIELD, Upload, read_uploads
from mien.app.settings import Settings
from mien.data.contract import DecodeError
from mien.data.contract.decode import formats

T = TypeVar("T")
router = APIRouter()
_BINARY: Final = {"type": "string", "format": "binary", "minLength": 1}
_GIVEN_BOX: Final = {"$ref": "#/components/schemas/GivenBox"}
_KINDS: Final = tuple(f"image/{name.lower()}" for name in formats() if name not in FILES_ONLY)
# A small photo with one face, so that the example of the API description can be sent
_PHOTO: Final = base64.b64encode((Path(__file__).parents[2] / "static" / "example.jpg").read_bytes()).decode()
_REQUEST_BODY: Final[dict[str, Any]] = {
    "required": True,
    "content": {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "required": [FIELD],
                "additionalProperties": False,
                "properties": {
                    FIELD: {"type": "array", "minItems": 1, "items": _BINARY},
                    BOXES: {
                        "type": "array",
                        "items": {"anyOf": [{"type": "array", "items": _GIVEN_BOX}, {"type": "null"}]},
                        "description": "for each image, in order: boxes to label instead of detected faces, or null",
                    },
                },
            },
            "encoding": {FIELD: {"contentType": ", ".join(_KINDS)}, BOXES: {"contentType": "application/json"}},
        },
        "application/json": {
            "schema": {"$ref": "#/components/schemas/EncodedImages"},
            "example": {FIELD: [{"name": "astronaut.jpg", "base64": _PHOTO}]},
        },
        "application/octet-stream": {"schema": _BINARY},
    },
}
_TO_JSON: Final = TypeAdapter(ExpressionsResponse).dump_json
_COMPRESSED_BYTES: Final = 8192  # of JSON, from which on compression saves packets: about six faces
_PIECE_BYTES: Final = 262_144
_RESPONSE_COPIES: Final = 2  # of an image in a response: its text, and JSON
_PROBLEMS: Final = (400, 401, 403, 408, 413, 415, 422, 429, 500, 503)


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
    # FastAPI's own description of invalid parameters, which are problems here
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    for operation in operations:
        if "application/json" in operation["responses"].get("422", {}).get("content", {}):
            operation["responses"].pop("422")
    for unused in ("HTTPValidationError", "ValidationError"):
        document["components"]["schemas"].pop(unused, None)
    for operation in operations:
        for parameter in operation.get("parameters", ()):
            if parameter["name"] == "model":
                parameter["schema"] = {
                    "type": "string",
                    "enum": list(settings.model_names),
                    "default": settings.model_names[0],
                }


@router.post(
    "/v1/expressions",
    tags=["expressions"],
    summary="Find the faces in one or more images and label their expressions",
    response_model=ExpressionsResponse,
    responses=problem_docs(*_PROBLEMS),
    openapi_extra={"requestBody": _REQUEST_BODY},
)
async def expressions(request: Request, options: Annotated[LabelOptions, Query()], service: TheService) -> Response:
    """Label the faces of one or more images.

    Send `multipart/form-data` with parts named `images`, `application/json` with images in base64, or one image as
    the body, as `image/*` or `application/octet-stream`. An image that cannot be read has an `error`; if none can be
    read, the response is a problem. An image without a face has an empty list of `faces`. No image is stored.
    """
    check_unique(request)
    labeler, settings = service.labeler(options.model), service.settings
    classifier = labeler.classifier
    if options.explain and classifier.manifest.explain is None:
        raise InvalidRequest(f"explain: model {classifier.manifest.name} has no attention map; request without explain")
    clock = _Clock()
    with ExitStack() as cleanup:
        reservation = cleanup.enter_context(service.admission.admit(client_of(request)))
        try:
            async with asyncio.timeout(settings.body_timeout_s):
                uploads = await read_uploads(request.headers, request.stream(), settings, reservation.buffer)
        except TimeoutError:
            raise HTTPException(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the body did not arrive within {settings.body_timeout_s:g} s",
                headers={"Connection": "close"},
            ) from None
        clock.lap("receive")
        try:
            images = await _until_gone(request, _label(service, uploads, options, reservation, clock))
        finally:
            uploads.clear()  # the traceback of an error would keep them until the next full garbage collection
        result = ExpressionsResponse(
            model=classifier.manifest.name,
            provider=classifier.provider,
            precision=classifier.precision,
            detector="none" if options.aligned else labeler.detector.name,
            confidence_threshold=labeler.threshold(options.confidence_threshold),
            images=images,
            timings_ms=clock.laps_ms | {"total": clock.total_ms()},
        )
        body, headers = _TO_JSON(result), {"Vary": "Accept-Encoding"}
        images_bytes = sum(image.bytes_of_images for image in images)  # which are compressed already
        if len(body) > _COMPRESSED_BYTES and not images_bytes and accepts_gzip(request):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return _HeldResponse(body, headers, cleanup.pop_all())


class _HeldResponse(Response):
    """A JSON response that holds the reservation of its request, and the bytes in the buffer, until it is sent."""

    def __init__(self, body: bytes, headers: dict[str, str], cleanup: ExitStack) -> None:
        super().__init__(body, media_type="application/json", headers=headers)
        self._cleanup = cleanup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._cleanup:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for start in range(0, len(self.body), _PIECE_BYTES):  # the server waits for the client after each
                piece = self.body[start : start + _PIECE_BYTES]
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


class _Clock:
    """Laps of one request in milliseconds."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self.laps_ms: dict[str, float] = {}

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps_ms[name] = round((now - self._last) * 1000.0, 2)
        self._last = now

    def total_ms(self) -> float:
        return round((time.perf_counter() - self._start) * 1000.0, 2)


async def _label(
    service: Service,
    uploads: list[Upload],
    options: LabelOptions,
    reservation: Reservation,
    clock: _Clock,
) -> list[ImageResult]:
    """Wait for a slot, and label the images of a request, as many at once as there are threads.

    Raises: RequestTimeout; BatchTooLarge, if the images themselves took most of the time; the error of the first image,
        if none can be read.
    """
    timeout_s = service.settings.request_timeout_s
    threads = asyncio.Semaphore(service.threads)
    classifier = service.labeler(options.model).classifier

    async def label(index: int) -> ImageResult | Exception:
        name = uploads[index].name

        def render(photo: Photo) -> ImageResult:
            return serialize.image_result(index, name, photo, classifier, options)

        async with threads:
            try:
                result = await service.label(uploads[index].payload, options, render, boxes=uploads[index].boxes)
                reservation.buffer(_RESPONSE_COPIES * result.bytes_of_images)
                return result
            except (RequestError, CapacityError, DecodeError) as error:
                return error.with_traceback(None)
            except asyncio.CancelledError as error:
                # its frames hold the image until the next full garbage collection
                raise error.with_traceback(None) from None

    try:
        async with asyncio.timeout(timeout_s), service.admission.slot(reservation.client):
            clock.lap("wait")
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(label(index)) for index in range(len(uploads))]
            results = [task.result() for task in tasks]
            clock.lap("work")
    except TimeoutError:
        waited_ms = clock.laps_ms.get("wait")
        if len(uploads) > 1 and waited_ms is not None and waited_ms < timeout_s * 500.0:
            few = f"{len(uploads)} images were not finished within {timeout_s:g} s: send fewer in one request"
            raise BatchTooLarge(few) from None
        raise RequestTimeout(f"not finished within {timeout_s:g} s: try again later") from None
    errors = [result for result in results if isinstance(result, Exception)]
    if len(errors) == len(results):
        raise errors[0]
    return [
        serialize.failed_image(index, upload.name, result) if isinstance(result, Exception) else result
        for index, (upload, result) in enumerate(zip(uploads, results, strict=True))
    ]


async def _until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run the work, but stop if the client disconnects."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for future in (task, gone):
            future.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)
