"""The routes of the service: `POST /v1/expressions`, the model, probes and metrics.

Flow of a request: admission -> uploads -> slot -> decode, detect, align, classify, render in one thread of the pool.
The pool has one thread per core; more would slow down each photo. A GPU runs the networks for all threads together.
"""

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect, HTTPConnection

from mien.app import VERSION
from mien.app.cpu_count import cores
from mien.app.errors import BatchTooLarge, CapacityError, InvalidRequest, RequestError, RequestTimeout, problem
from mien.app.inference.classifier import CPU, Classifier, cuda_unavailable_reason, gpu_unavailable_reason
from mien.app.inference.drawing import annotate, overlay, reduced
from mien.app.inference.guard import PixelBudget, memory_px
from mien.app.inference.labeler import Labeler, timed
from mien.app.inference.records import Box, Explanation, ImageData, Photo
from mien.app.service.metrics import Metrics
from mien.app.service.schema import (
    REQUEST_BODY,
    ExpressionsResponse,
    Health,
    ImageResult,
    ModelInfo,
    ModelsResponse,
    ProblemDetails,
    Readiness,
    responses,
)
from mien.app.service.uploads import Admission, LabelOptions, Reserve, Upload, read_uploads
from mien.app.settings import Settings
from mien.data.contract import DecodeError
from mien.models.manifest import scores_of

T = TypeVar("T")
CARD_NAME: Final = "card.md"
_DRAWN_PX: Final = 2048
_PIECE_BYTES: Final = 262_144
_RESPONSE_COPIES: Final = 2  # of an image in a response: its text, and JSON
IMAGE_ERRORS: Final = (RequestError, CapacityError, DecodeError)
_TO_JSON: Final = TypeAdapter(ExpressionsResponse).dump_json


def fallback(classifier: Classifier, settings: Settings) -> str | None:
    """Reason why the model runs on the CPU although there is a GPU, or `auto` was set explicitly; None otherwise."""
    if settings.device != "auto" or settings.precision == "int8" or classifier.provider != CPU:
        return None
    if "device" not in settings.model_fields_set and gpu_unavailable_reason() is not None:
        return None
    return cuda_unavailable_reason() or "the model does not run on the GPU of this machine: see the log of the start"


class Service:
    """Models, threads and admission control of one process. Belongs to one event loop."""

    def __init__(self, labeler: Labeler, settings: Settings) -> None:
        self.labeler, self.settings, self.metrics = labeler, settings, Metrics()
        classifier = labeler.classifier
        self.choice = Path(settings.model or "fast").name
        self.running = {
            "model": classifier.manifest.name,
            "provider": classifier.provider,
            "precision": classifier.precision,
            "detector": labeler.detector.name,
        }
        self.fallback = fallback(classifier, settings)
        self.metrics.running.labels(**self.running, fallback="none" if self.fallback is None else "cpu").set(1)
        classifier.on_batch = self.metrics.batch_faces.observe
        # worker processes share the cores
        self.threads = max(1, cores() // (settings.workers or 1))
        self.admission = Admission(settings, self.metrics, slots=max(8, 4 * self.threads))
        self._pixels = PixelBudget(settings.max_pixels)
        # a thread that waits for the inference on a GPU uses no core
        threads = self.threads if classifier.provider == CPU else 2 * self.threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="mien-photo")

    async def in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run a function in the pool with the request id; a call that is canceled while queued never runs."""
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._pool, run, function, *args)

    async def label_image(
        self,
        payload: bytes,
        options: LabelOptions,
        render: Callable[[Photo], T],
        *,
        boxes: Sequence[Box] | None = None,
        live: bool = False,
    ) -> T:
        """Label the faces of one image, or its `boxes`; `render` converts the labeled photo to a response, in a thread.

        `live`: the image is a frame of a stream.

        Raises: DecodeError, RequestError or CapacityError, for an image that cannot be labeled.
        """

        def work() -> T:
            with self._pixels.reservation() as reserve:  # also of the pixels that `render` draws on
                prepared = self.labeler.prepare(
                    payload,
                    whole=options.whole,
                    boxes=boxes,
                    keep_pixels=options.annotate,
                    live=live,
                    admit=lambda size: reserve(memory_px(size)),
                )
                (photo,) = self.labeler.classify([prepared], threshold=options.confidence_threshold)
                self._count(photo)
                return render(photo)

        try:
            return await self.in_thread(work)
        except IMAGE_ERRORS:
            self.metrics.images.labels("refused").inc()
            raise

    def _count(self, photo: Photo) -> None:
        self.metrics.images.labels("labeled" if photo.faces else "no_face").inc()
        for stage, milliseconds in photo.timings_ms.items():
            self.metrics.stage_seconds.labels(stage).observe(milliseconds / 1000.0)
        for face in photo.faces:
            self.metrics.faces.labels(face.label, str(face.uncertain).lower()).inc()

    def close(self) -> None:
        """Finish running photos, and drop queued ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)


# Dependencies are async, because FastAPI runs plain functions in a thread.
async def service_of(connection: HTTPConnection) -> Service:
    """Service of this process, for requests and WebSockets."""
    service: Service = connection.app.state.service
    return service


TheService = Annotated[Service, Depends(service_of)]


async def _check_unique(connection: HTTPConnection) -> None:
    names = [name for name, _ in connection.query_params.multi_items()]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"option {', '.join(repeated)[:200]}: given more than once")


async def _admitted(service: TheService) -> AsyncIterator[Reserve]:
    with service.admission.admit() as reserve:
        yield reserve  # FastAPI continues here when the client has read the response


# Rejects an option that is given twice: which one counts would be a guess
UNIQUE_OPTIONS: Final = [Depends(_check_unique)]
router, probes = APIRouter(), APIRouter()  # all but the probes require a key, if there are keys


@probes.get("/health", tags=["health"], summary="Alive", responses=responses(500))
async def health() -> Health:
    """Responds while the event loop is running, independent of the model."""
    return Health(version=VERSION)


@probes.get("/ready", tags=["health"], summary="Ready for work", responses=responses(500))
async def ready(service: TheService) -> Readiness:
    """200 with what runs; nothing listens before the model is warm, nor while the process stops."""
    admission = service.admission
    return Readiness(
        **service.running,
        fallback=service.fallback,
        queue_depth=admission.waiting,
        queue_limit=service.settings.max_queue,
        requests_inside=admission.waiting + admission.working,
        version=VERSION,
    )


@router.get(
    "/metrics",
    tags=["health"],
    summary="Prometheus metrics",
    response_class=Response,
    responses=responses(401, 500, media_type="text/plain"),
)
async def metrics(service: TheService) -> Response:
    """Counters, gauges and histograms in the text format."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models", tags=["models"], summary="Served model", responses=responses(401, 500))
async def models(service: TheService) -> ModelsResponse:
    """The verified artifact that this process runs, with its metrics in this precision."""
    classifier = service.labeler.classifier
    manifest = classifier.manifest
    own = {
        "choice": service.choice,
        "precision": classifier.precision,
        "provider": classifier.provider,
        "prior": classifier.prior,
        "explain": manifest.explain is not None,
        "color": "RGB",
        "metrics": scores_of(classifier.folder, classifier.precision),
    }
    return ModelsResponse(models=[ModelInfo(**own | manifest.model_dump(include=ModelInfo.model_fields.keys() - own))])


@router.get(
    "/v1/models/{name}/card",
    tags=["models"],
    summary="Model card",
    response_class=Response,
    responses=responses(401, 404, 422, 500, media_type="text/markdown"),
)
async def model_card(name: str, service: TheService) -> Response:
    """The model card as Markdown: use, training data, metrics and limitations."""
    classifier = service.labeler.classifier
    if name not in (classifier.manifest.name, service.choice):
        raise HTTPException(HTTPStatus.NOT_FOUND)
    card = await service.in_thread((classifier.folder / CARD_NAME).read_bytes)
    return Response(card, media_type="text/markdown")


@router.post(
    "/v1/expressions",
    tags=["expressions"],
    dependencies=UNIQUE_OPTIONS,
    summary="Find the faces in one or more images and label their expressions",
    response_model=ExpressionsResponse,
    responses=responses(401, 403, 413, 415, 422, 500, 503),
    openapi_extra={"requestBody": REQUEST_BODY},
)
async def expressions(
    request: Request,
    options: Annotated[LabelOptions, Query()],
    service: TheService,
    reserve: Annotated[Reserve, Depends(_admitted)],
) -> Response:
    """Label the faces of one or more images.

    Send `multipart/form-data` with parts named `images`, `application/json` with images in base64, or one image as
    the body, as `image/*` or `application/octet-stream`. An image that cannot be read has an `error`; if none can be
    read, the response is a problem. An image without a face has an empty list of `faces`. No image is stored.
    """
    if options.explain and service.labeler.classifier.manifest.explain is None:
        raise InvalidRequest(f"explain: model {service.running['model']} has no attention map; request without explain")
    timings_ms: dict[str, float] = {}
    with timed(timings_ms, "receive"):
        uploads = await read_uploads(request.headers, request.stream(), service.settings, reserve)
    try:
        images = await _until_gone(request, _label(service, uploads, options, reserve, timings_ms))
    finally:
        uploads.clear()  # the traceback of an error would keep them until the next full garbage collection
    result = ExpressionsResponse(
        **service.running | ({"detector": "none"} if options.whole else {}),
        choice=service.choice,
        confidence_threshold=service.labeler.threshold(options.confidence_threshold),
        images=images,
        timings_ms=timings_ms | {"total": sum(timings_ms.values())},
    )
    body = _TO_JSON(result)
    headers = {"Content-Length": str(len(body))}
    return StreamingResponse(_pieces(body), media_type="application/json", headers=headers)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    """Parts of a body; the server waits for the client after each."""
    for start in range(0, len(body), _PIECE_BYTES):
        yield body[start : start + _PIECE_BYTES]


async def _label(
    service: Service,
    uploads: list[Upload],
    options: LabelOptions,
    reserve: Reserve,
    timings_ms: dict[str, float],
) -> list[ImageResult]:
    """Wait for a slot, and label the images of a request, as many at once as there are threads.

    Raises: RequestTimeout; BatchTooLarge, if the images themselves took most of the time; the error of the first image,
        if none can be read.
    """
    timeout_s = service.settings.request_timeout_s
    threads = asyncio.Semaphore(service.threads)

    async def label(index: int) -> ImageResult | Exception:
        upload = uploads[index]

        def render(photo: Photo) -> ImageResult:
            return image_result(index, upload.name, photo, service.labeler.classifier, options)

        async with threads:
            try:
                result = await service.label_image(upload.payload, options, render, boxes=upload.boxes)
                reserve(_RESPONSE_COPIES * _bytes_of_images(result))
                return result
            except IMAGE_ERRORS as error:
                return error.with_traceback(None)
            except asyncio.CancelledError as error:
                # its frames hold the image until the next full garbage collection
                raise error.with_traceback(None) from None

    start_s = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s), service.admission.slot():
            timings_ms["wait"] = (time.perf_counter() - start_s) * 1000.0
            with timed(timings_ms, "work"):
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(label(index)) for index in range(len(uploads))]
    except TimeoutError:
        if len(uploads) > 1 and timings_ms.get("wait", timeout_s * 1000.0) < timeout_s * 500.0:
            few = f"{len(uploads)} images were not finished within {timeout_s:g} s: send fewer in one request"
            raise BatchTooLarge(few) from None
        raise RequestTimeout(f"not finished within {timeout_s:g} s: try again later") from None
    results = [task.result() for task in tasks]
    errors = [result for result in results if isinstance(result, Exception)]
    if len(errors) == len(results):
        raise errors[0]
    return [
        ImageResult(index=index, name=uploads[index].name, error=ProblemDetails(**problem(result)))
        if isinstance(result, Exception)
        else result
        for index, result in enumerate(results)
    ]


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
    crops = [ImageData.of(crop) if options.crops else None for crop in photo.crops]
    annotated = None
    if photo.pixels is not None:
        annotated = ImageData.of(annotate(reduced(photo.pixels, _DRAWN_PX), photo), "image/jpeg")
    return ImageResult(
        index=index,
        name=name,
        width=photo.width,
        height=photo.height,
        faces=[
            replace(face, crop=crop, explanation=explanation, crop_rgb=None)
            for face, crop, explanation in zip(photo.faces, crops, explanations, strict=True)
        ],
        notes=photo.notes,
        timings_ms=photo.timings_ms,
        annotated=annotated,
    )


def _bytes_of_images(result: ImageResult) -> int:
    images = [result.annotated, *(face.crop for face in result.faces)]
    images += [face.explanation.overlay for face in result.faces if face.explanation is not None]
    return sum(len(image.base64) for image in images if image is not None)


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
