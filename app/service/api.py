"""The routes of the service and what they return: `POST /v1/expressions`, the model, probes and metrics.

Flow of a request: uploads -> slot -> decode, detect, align, classify, render in one thread of the pool. The pool has
one thread per core; more threads would only slow down each photo. A GPU classifies the faces of all threads together.
"""

import asyncio
import base64
import contextvars
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import Receive, Scope, Send

from mien.app import VERSION
from mien.app.cpu_count import cores
from mien.app.errors import BatchTooLarge, CapacityError, InvalidRequest, RequestError, RequestTimeout, problem
from mien.app.inference.classifier import CPU, Classifier, cuda_unavailable_reason, gpu_unavailable_reason
from mien.app.inference.drawing import annotate, overlay, reduced
from mien.app.inference.guard import PixelBudget, memory_px, uploaded_formats
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import NOTES, Box, Explanation, Face, ImageData, Label, Photo
from mien.app.service.in_browser import BrowserPipeline, browser_pipeline
from mien.app.service.keys import DESCRIBED, check_key
from mien.app.service.limits import Admission, Reservation
from mien.app.service.metrics import Metrics
from mien.app.service.uploads import FIELD, EncodedImages, KnownFields, Upload, read_uploads
from mien.app.settings import Settings
from mien.data.contract import DecodeError
from mien.models.manifest import scores_of

T = TypeVar("T")
Fraction = Annotated[float, Field(ge=0, le=1)]
Milliseconds = Annotated[float, AfterValidator(partial(round, ndigits=2))]
CARD_NAME: Final = "card.md"
PROBLEM_TYPE: Final = "application/problem+json"


class FaceOptions(KnownFields):
    """Query parameters of everything that finds faces."""

    min_face_px: Annotated[float, Field(ge=1, le=100_000)] | None = Field(
        None, description="ignore faces whose shorter side is smaller, pixels"
    )
    confidence_threshold: Fraction | None = Field(
        None, description="a confidence below it is `uncertain`; by default the model's own threshold"
    )


class LabelOptions(FaceOptions):
    """Query parameters of a request."""

    crops: bool = Field(False, description="return each face, aligned, as PNG in base64")
    whole: bool = Field(False, description="each image is one face, such as those of `crops`: only classify it")
    annotate: bool = Field(False, description="return each image with its faces drawn in, as JPEG in base64")
    explain: bool = Field(
        False, description="return attention maps, of the first network of a mean; 422 if the model has none"
    )


class Record(BaseModel):
    """Base of what is returned."""

    model_config = ConfigDict(frozen=True)


class Finding(Record):
    """One part of a request that is invalid."""

    location: str
    message: str


class ProblemDetails(Record):
    """An error (RFC 9457)."""

    type: str = Field(description="urn:mien:problem:<kind>")
    title: str
    status: int
    detail: str
    errors: list[Finding] = Field(description="what is invalid in options or in the body")


class ImageResult(Record):
    """One image, in the order of the request; `faces` may be empty, and `error` is set if the image failed."""

    index: int = Field(description="position in the request, from 0")
    name: str | None = Field(description="file name, if the client sent one")
    width: int | None = Field(description="pixels, upright; null if the image could not be read")
    height: int | None = Field(description="pixels, upright; null if the image could not be read")
    faces: list[Face]
    notes: tuple[str, ...] = Field(
        (), description="codes of what to know about the image: " + "; ".join(map(": ".join, NOTES.items()))
    )
    timings_ms: dict[str, Milliseconds] = Field(
        {}, description="milliseconds per stage: decode, detect, align, classify"
    )
    annotated: ImageData | None = Field(
        None,
        description="with `annotate=true`: the image with its faces drawn, long side at most 2048 pixels",
    )
    error: ProblemDetails | None = None

    @property
    def bytes_of_images(self) -> int:
        """Bytes of the images in base64."""
        images = [self.annotated, *(face.crop for face in self.faces)]
        images += [face.explanation.overlay for face in self.faces if face.explanation is not None]
        return sum(len(image.base64) for image in images if image is not None)


class ExpressionsResponse(Record):
    """The response to one request."""

    model: str = Field(description="name of the artifact that labeled the faces")
    choice: str = Field(description="the same as it was chosen for the service: fast, accurate, or a name")
    provider: str = Field(description="ONNX Runtime provider that ran the model")
    precision: str = Field(description="precision of its graph: fp32, fp16 or int8")
    detector: str = Field(description="what found the faces; `none` with `whole=true`")
    confidence_threshold: Fraction = Field(description="a confidence below it is `uncertain`")
    images: list[ImageResult]
    timings_ms: dict[str, Milliseconds] = Field(description="milliseconds of the request: receive, wait, work, total")


class ModelInfo(Record):
    """The model that this process serves."""

    name: str
    choice: str = Field(description="as it was chosen for the service: fast, accurate, or a name")
    labels: list[Label]
    contract_id: str
    precision: str
    provider: str
    parameters: int
    color: str
    confidence_threshold: Fraction
    temperature: float
    prior: Literal["natural", "balanced"] = Field(
        description="balanced: probabilities are corrected for rare expressions"
    )
    prior_correction: list[float] = Field(description="added to the scaled logits if prior is balanced, by label")
    license: str
    commit: str
    explain: bool = Field(description="whether `explain=true` is supported")
    metrics: list[dict[str, object]]


class ModelsResponse(Record):
    """`GET /v1/models`."""

    models: list[ModelInfo]


class Health(Record):
    """The process is alive."""

    status: Literal["alive"] = "alive"
    version: str


class Readiness(Record):
    """The process accepts requests; the fields say what runs."""

    status: Literal["ready"] = "ready"
    model: str
    provider: str
    precision: str
    fallback: str | None = Field(
        description="why the model runs on the CPU although a GPU was requested or is there; otherwise null"
    )
    detector: str
    queue_depth: int = Field(description="requests in the queue")
    queue_limit: int
    requests_inside: int = Field(description="requests running or waiting")
    version: str


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
        self.labeler, self.settings = labeler, settings
        self.choice = Path(settings.model or "fast").name
        self.metrics = metrics = Metrics()
        self.threads = cores()
        classifier = labeler.classifier
        self.fallback = fallback(classifier, settings)
        self.admission = Admission(settings, metrics)
        classifier.on_batch = metrics.batch_faces.observe
        metrics.running.labels(
            model=classifier.manifest.name,
            provider=classifier.provider,
            precision=classifier.precision,
            detector=labeler.detector.name,
            fallback="none" if self.fallback is None else "cpu",
        ).set(1)
        self._pixels = PixelBudget(settings.max_pixels_at_once)
        # a thread that waits for the inference on a GPU uses no core
        threads = self.threads if classifier.provider == CPU else 2 * self.threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="mien-photo")

    @cached_property
    def in_browser(self) -> BrowserPipeline:
        """Graphs and parameters for labeling in the browser. Raises: ArtifactError."""
        return browser_pipeline(self.labeler.classifier.folder, self.settings)

    async def in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run a function in the pool with the request id; a call that is canceled while queued never runs."""
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._pool, run, function, *args)

    async def label_image(
        self, payload: bytes, options: LabelOptions, render: Callable[[Photo], T], *, boxes: Sequence[Box] | None = None
    ) -> T:
        """Label the faces of one image, or its `boxes`; `render` converts the labeled photo to a response, in a thread.

        Raises: DecodeError, RequestError or CapacityError, for an image that cannot be labeled.
        """

        def work() -> T:
            with self._pixels.reservation() as reserve:  # also of the pixels that `render` draws on
                prepared = self.labeler.prepare(
                    payload,
                    whole=options.whole,
                    boxes=boxes,
                    keep_pixels=options.annotate,
                    admit=lambda size: reserve(memory_px(size)),
                )
                (photo,) = self.labeler.classify([prepared], threshold=options.confidence_threshold)
                self._count(photo)
                return render(photo)

        try:
            return await self.in_thread(work)
        except (RequestError, CapacityError, DecodeError):
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


_BINARY: Final = {"type": "string", "format": "binary", "minLength": 1}
_KINDS: Final = tuple(f"image/{name.lower()}" for name in uploaded_formats())
# A small photo with one face, so that the example of the API description can be sent
_PHOTO: Final = base64.b64encode((Path(__file__).parents[1] / "static" / "example.jpg").read_bytes()).decode()
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
        "image/*": {"schema": _BINARY},
    },
}
_TO_JSON: Final = TypeAdapter(ExpressionsResponse).dump_json
_PIECE_BYTES: Final = 262_144
_DRAWN_PX: Final = 2048
_RESPONSE_COPIES: Final = 2  # of an image in a response: its text, and JSON


async def service_of(connection: HTTPConnection) -> Service:
    """Service of this process, for requests and WebSockets; async, because FastAPI runs plain functions in a thread."""
    service: Service = connection.app.state.service
    return service


async def _check_unique(connection: HTTPConnection) -> None:
    names = [name for name, _ in connection.query_params.multi_items()]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidRequest(f"option {', '.join(repeated)[:200]}: given more than once")


TheService = Annotated[Service, Depends(service_of)]
# Rejects an option that is given twice: which one counts would be a guess
UNIQUE_OPTIONS: Final = [Depends(_check_unique)]
_labeling, _models, _metrics, _probes = APIRouter(), APIRouter(), APIRouter(), APIRouter()


def routers(settings: Settings) -> list[APIRouter]:
    """All routes of HTTP; all but the probes require a key, if there are keys."""
    described = DESCRIBED if settings.api_key_sha256 else []
    keyed = APIRouter(dependencies=[Depends(check_key), *described])
    keyed.include_router(_labeling)
    keyed.include_router(_models)
    if settings.metrics_without_key:
        return [keyed, _metrics, _probes]
    keyed.include_router(_metrics)
    return [keyed, _probes]


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the problems that a route may respond with."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def describe_limits(document: dict[str, Any], settings: Settings) -> None:
    """Complete the API description with this deployment's limits, and the headers of responses."""
    multipart = document["paths"]["/v1/expressions"]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"]
    encoded = EncodedImages.model_json_schema(ref_template="#/components/schemas/{model}")
    for form in (multipart, encoded):
        form["properties"][FIELD]["maxItems"] = settings.max_images
    schemas = document["components"]["schemas"]
    schemas |= {**encoded.pop("$defs"), "EncodedImages": encoded}
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        # FastAPI's own description of invalid parameters, which are problems here
        if "application/json" in operation["responses"].get("422", {}).get("content", {}):
            operation["responses"].pop("422")
        for status, response in operation["responses"].items():
            names = ["X-Request-ID", "Mien-Provider", *(["Retry-After"] if status == "503" else [])]
            response["headers"] = {name: {"schema": {"type": "string"}} for name in names}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)


@_probes.get("/health", tags=["health"], summary="Alive", responses=problems(500))
async def health() -> Health:
    """Responds while the event loop is running, independent of the model."""
    return Health(version=VERSION)


@_probes.get("/ready", tags=["health"], summary="Ready for work", responses=problems(500))
async def ready(service: TheService) -> Readiness:
    """200 with what runs; nothing listens before the model is warm, nor while the process stops."""
    classifier, admission = service.labeler.classifier, service.admission
    return Readiness(
        model=classifier.manifest.name,
        provider=classifier.provider,
        precision=classifier.precision,
        fallback=service.fallback,
        detector=service.labeler.detector.name,
        queue_depth=admission.waiting,
        queue_limit=service.settings.max_queue,
        requests_inside=admission.waiting + admission.working,
        version=VERSION,
    )


@_metrics.get(
    "/metrics",
    tags=["health"],
    summary="Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **problems(401, 500)},
)
async def metrics(service: TheService) -> Response:
    """Counters, gauges and histograms in the text format."""
    return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)


@_models.get("/v1/models", tags=["models"], summary="Served model", responses=problems(401, 500))
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
        "metrics": scores_of(classifier.folder, classifier.precision),
    }
    return ModelsResponse(models=[ModelInfo(**own | manifest.model_dump(include=ModelInfo.model_fields.keys() - own))])


@_models.get(
    "/v1/models/{name}/card",
    tags=["models"],
    summary="Model card",
    response_class=Response,
    responses={200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}, **problems(401, 404, 500)},
)
async def model_card(name: str, service: TheService) -> Response:
    """The model card as Markdown: use, training data, metrics and limitations."""
    classifier = service.labeler.classifier
    if name not in (classifier.manifest.name, service.choice):
        raise HTTPException(HTTPStatus.NOT_FOUND)
    text = await service.in_thread((classifier.folder / CARD_NAME).read_bytes)
    return Response(text, media_type="text/markdown")


class _HeldResponse(StreamingResponse):
    """A response that holds what its request has reserved until the client has read it."""

    def __init__(self, chunks: AsyncIterator[bytes], cleanup: ExitStack) -> None:
        super().__init__(chunks, media_type="application/json")
        self._cleanup = cleanup

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._cleanup:
            await super().__call__(scope, receive, send)


@_labeling.post(
    "/v1/expressions",
    tags=["expressions"],
    dependencies=UNIQUE_OPTIONS,
    summary="Find the faces in one or more images and label their expressions",
    response_model=ExpressionsResponse,
    responses=problems(400, 401, 403, 413, 415, 422, 500, 503),
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
            choice=service.choice,
            provider=classifier.provider,
            precision=classifier.precision,
            detector="none" if options.whole else labeler.detector.name,
            confidence_threshold=labeler.threshold(options.confidence_threshold),
            images=images,
            timings_ms=clock.laps_ms | {"total": sum(clock.laps_ms.values())},
        )
        body = _TO_JSON(result)
        response = _HeldResponse(_pieces(body), cleanup.pop_all())
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
    details = ProblemDetails(**problem(error))
    return ImageResult(index=index, name=name, width=None, height=None, faces=[], error=details)


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
