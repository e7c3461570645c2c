"""`POST /v1/expressions`: images in, faces with their expressions out."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import numpy as np
from fastapi import APIRouter, Query, Request, Response
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect

from mien.app.errors import BatchTooLarge, CapacityError, InvalidRequest, RequestError, RequestTimeout
from mien.app.inference.classifier import Classifier
from mien.app.inference.decode import FILES_ONLY
from mien.app.inference.drawing import annotate, overlay, reduced
from mien.app.inference.records import Explanation, ImageData, Photo
from mien.app.service.admission import Reservation
from mien.app.service.routes import UNIQUE_OPTIONS, HeldResponse, TheService, problem_docs
from mien.app.service.schemas import (
    EncodedImages,
    ExpressionsResponse,
    ImageResult,
    LabelOptions,
    ProblemDetails,
)
from mien.app.service.state import Service
from mien.app.service.uploads import FIELD, Upload, read_uploads
from mien.app.settings import Settings
from mien.data.contract import DecodeError
from mien.data.contract.decode import formats

T = TypeVar("T")
router = APIRouter()
_BINARY: Final = {"type": "string", "format": "binary", "minLength": 1}
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
                },
            },
            "encoding": {FIELD: {"contentType": ", ".join(_KINDS)}},
        },
        "application/json": {
            "schema": {"$ref": "#/components/schemas/EncodedImages"},
            "example": {FIELD: [{"name": "astronaut.jpg", "base64": _PHOTO}]},
        },
        "application/octet-stream": {"schema": _BINARY},
    },
}
_TO_JSON: Final = TypeAdapter(ExpressionsResponse).dump_json
_PIECE_BYTES: Final = 262_144
_DRAWN_PX: Final = 2048
_RESPONSE_COPIES: Final = 2  # of an image in a response: its text, and JSON
_PROBLEMS: Final = (400, 401, 403, 413, 415, 422, 500, 503)


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


@router.post(
    "/v1/expressions",
    tags=["expressions"],
    dependencies=UNIQUE_OPTIONS,
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
    labeler, settings = service.labeler, service.settings
    classifier = labeler.classifier
    if options.explain and classifier.manifest.explain is None:
        raise InvalidRequest(f"explain: model {classifier.manifest.name} has no attention map; request without explain")
    clock = _Clock()
    with ExitStack() as cleanup:
        reservation = cleanup.enter_context(service.admission.admit())
        uploads = await read_uploads(request.headers, request.stream(), settings, reservation.buffer)
        clock.lap("receive")
        try:
            images = await _until_gone(request, _label(service, uploads, options, reservation, clock))
        finally:
            uploads.clear()  # the traceback of an error would keep them until the next full garbage collection
        result = ExpressionsResponse(
            model=classifier.manifest.name,
            provider=classifier.provider,
            precision=classifier.precision,
            detector="none" if options.whole else labeler.detector.name,
            confidence_threshold=labeler.threshold(options.confidence_threshold),
            images=images,
            timings_ms=clock.laps_ms | {"total": sum(clock.laps_ms.values())},
        )
        body = _TO_JSON(result)
        response = HeldResponse(_pieces(body), "application/json", cleanup.pop_all())
        response.headers["Content-Length"] = str(len(body))
        return response


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """Parts of a body; the server waits for the client after each."""
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]


class _Clock:
    """Laps of one request in milliseconds."""

    def __init__(self) -> None:
        self._last_s, self.laps_ms = time.perf_counter(), dict[str, float]()

    def lap(self, name: str) -> None:
        now_s = time.perf_counter()
        self.laps_ms[name], self._last_s = (now_s - self._last_s) * 1000.0, now_s


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
    classifier = service.labeler.classifier

    async def label(index: int) -> ImageResult | Exception:
        name = uploads[index].name

        def render(photo: Photo) -> ImageResult:
            return image_result(index, name, photo, classifier, options)

        async with threads:
            try:
                result = await service.label_image(uploads[index].payload, options, render, boxes=uploads[index].boxes)
                reservation.buffer(_RESPONSE_COPIES * result.bytes_of_images)
                return result
            except (RequestError, CapacityError, DecodeError) as error:
                return error.with_traceback(None)
            except asyncio.CancelledError as error:
                # its frames hold the image until the next full garbage collection
                raise error.with_traceback(None) from None

    try:
        async with asyncio.timeout(timeout_s), service.admission.slot():
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
        _failed(index, uploads[index].name, result) if isinstance(result, Exception) else result
        for index, result in enumerate(results)
    ]


def _failed(index: int, name: str | None, error: Exception) -> ImageResult:
    problem = ProblemDetails.of(error)
    return ImageResult(index=index, name=name, width=None, height=None, faces=[], timings_ms={}, error=problem)


def image_result(
    index: int, name: str | None, photo: Photo, classifier: Classifier, options: LabelOptions
) -> ImageResult:
    """One image with its faces, and with the images that the options ask for."""
    explanations: list[Explanation | None] = [None] * len(photo.faces)
    if options.explain and photo.faces:
        maps = classifier.explain(photo.crops)
        explanations = [
            Explanation(map=relevance.round(6).tolist(), overlay=ImageData.of(overlay(crop, relevance)))
            for crop, relevance in zip(photo.crops, maps.astype(np.float64), strict=True)
        ]
    return ImageResult(
        index=index,
        name=name,
        width=photo.width,
        height=photo.height,
        faces=[
            replace(
                face,
                crop=ImageData.of(crop) if options.crops else None,
                explanation=explanation,
                crop_rgb=None,
            )
            for face, crop, explanation in zip(photo.faces, photo.crops, explanations, strict=True)
        ],
        notes=photo.notes,
        timings_ms=photo.timings_ms,
        annotated=None
        if photo.pixels is None
        else ImageData.of(annotate(reduced(photo.pixels, _DRAWN_PX), photo), "image/jpeg"),
    )


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
