"""Service of one process: its models, and a thread pool that keeps image processing off the event loop.

Flow: upload -> turn -> decode, detect, align, classify in one thread of the pool -> record. The pool has one thread per
core; more threads would only slow down each photo. A GPU classifies the faces of all requests together instead.
"""

import asyncio
import contextvars
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from mien.app.errors import CapacityError, InvalidRequest, RequestError
from mien.app.inference import image_guard
from mien.app.inference.batcher import Batcher, BatchLimits
from mien.app.inference.classifier import Classifier
from mien.app.inference.in_browser import BrowserPipeline, browser_pipeline
from mien.app.inference.pipeline import Analysis, Pipeline, PreparedPhoto, timed
from mien.app.inference.runtime.cpu_count import cores
from mien.app.inference.runtime.sessions import CPU, cuda_obstacle
from mien.app.service.admission import Admission
from mien.app.service.metrics import Metrics
from mien.app.service.uploads import Upload
from mien.app.settings import Settings
from mien.data.contract import Array, DecodeError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Labeled:
    """An upload that could be read; `image` is (H, W, 3) uint8 RGB, kept only on request."""

    analysis: Analysis
    image: Array | None


@dataclass(frozen=True, slots=True)
class Refused:
    """An upload that could not be read."""

    error: RequestError | CapacityError | DecodeError


Result = Labeled | Refused


@dataclass(frozen=True, slots=True)
class Treatment:
    """Options for the images of a request.

    model: name of the model; None: the default model.
    min_face_px: leave out faces whose shorter side is smaller.
    aligned: the images are aligned faces already.
    keep_image: keep the pixels in the result.
    """

    model: str | None = None
    min_face_px: float | None = None
    aligned: bool = False
    keep_image: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model that requests can select, with its batcher if it runs on a GPU."""

    pipeline: Pipeline
    batcher: Batcher | None

    def threshold(self, requested: float | None) -> float:
        """Confidence threshold of a request; that of the model if the request has none."""
        return self.pipeline.classifier.manifest.abstain_threshold if requested is None else requested


def fallback(classifier: Classifier, settings: Settings) -> str | None:
    """Reason why the model runs on the CPU although device `auto` was set explicitly; None otherwise."""
    asked = settings.device == "auto" and "device" in settings.model_fields_set and settings.precision != "int8"
    if not asked or classifier.provider != CPU:
        return None
    return cuda_obstacle() or "the model does not run on the GPU of this machine: see the log of the start"


class Service:
    """Models, threads and admission control of one process. Belongs to one event loop."""

    def __init__(self, pipelines: Mapping[str, Pipeline], settings: Settings, metrics: Metrics) -> None:
        self.pipeline = next(iter(pipelines.values()))
        self.settings = settings
        self.metrics = metrics
        self.threads = cores()
        self.fallback = fallback(self.pipeline.classifier, settings)
        self.draining = False
        self.admission = Admission(settings)
        self.models = {name: Model(pipeline, self._batcher(pipeline)) for name, pipeline in pipelines.items()}
        self._pixels = image_guard.PixelBudget(settings.max_pixels_at_once)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="mien-photo")

    def _batcher(self, pipeline: Pipeline) -> Batcher | None:
        if pipeline.classifier.provider == CPU:
            return None  # photos in parallel have a higher throughput and shorter waits than shared inferences
        limits = BatchLimits(
            max_faces=self.settings.max_batch or pipeline.classifier.max_batch,
            max_wait_s=self.settings.batch_wait_ms / 1000.0,
            max_queue=self.settings.batch_queue,
        )
        return Batcher(pipeline.classify, limits, on_batch=self.metrics.batch_faces.observe)

    def model(self, name: str | None) -> Model:
        """A model by name; the default model if None. Raises: InvalidRequest, listing the loaded models."""
        if name is None:
            return next(iter(self.models.values()))
        if name not in self.models:
            raise InvalidRequest(f"model {name[:100]}: not loaded here. Choose one of: {', '.join(self.models)}")
        return self.models[name]

    @cached_property
    def in_browser(self) -> BrowserPipeline:
        """Graphs and parameters for labeling in the browser. Raises: ArtifactError."""
        return browser_pipeline(self.pipeline.classifier.folder, self.settings)

    async def in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run a function in the pool with the request id; a call that is canceled while queued never runs."""
        run = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._pool, run, function, *args)

    async def label(self, uploads: Sequence[Upload], treatment: Treatment) -> list[Result]:
        """Label the faces of every upload, in order. An image that cannot be read has a result with an error.

        Raises: InvalidRequest, for a model that is not loaded.
        """
        model = self.model(treatment.model)
        concurrent = asyncio.Semaphore(self.threads)

        async def one(upload: Upload) -> Result:
            async with concurrent:
                return await self._label(upload, model, treatment)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(upload)) for upload in uploads]
        return [task.result() for task in tasks]

    async def _label(self, upload: Upload, model: Model, treatment: Treatment) -> Result:
        try:
            if upload.error is not None:
                raise upload.error
            if model.batcher is None:
                photo, probabilities = await self.in_thread(self._classified, upload.payload, model.pipeline, treatment)
            else:
                photo = await self.in_thread(self._prepare, upload.payload, model.pipeline, treatment)
                with timed(photo.timings_ms, "classify"):
                    probabilities = await model.batcher.classify(photo.crops)
        except (RequestError, CapacityError, DecodeError) as error:
            self.metrics.images.labels("refused").inc()
            return Refused(error)
        analysis = model.pipeline.label(photo, probabilities)
        self._count(analysis)
        return Labeled(analysis, photo.image if treatment.keep_image else None)

    def _classified(self, payload: bytes, pipeline: Pipeline, treatment: Treatment) -> tuple[PreparedPhoto, Array]:
        photo = self._prepare(payload, pipeline, treatment)
        with timed(photo.timings_ms, "classify"):
            probabilities = pipeline.classify(photo.crops)
        if photo.faces:
            self.metrics.batch_faces.observe(len(photo.faces))
        return photo, probabilities

    def _prepare(self, payload: bytes, pipeline: Pipeline, treatment: Treatment) -> PreparedPhoto:
        pixels = image_guard.check(payload, max_pixels=self.settings.max_pixels)
        with self._pixels.hold(pixels):
            if treatment.aligned:
                return pipeline.prepare_crop(payload)
            photo = pipeline.prepare(payload, keep_image=treatment.keep_image)
        if treatment.min_face_px is None:
            return photo
        large = [index for index, face in enumerate(photo.faces) if min(face.box_px[2:]) >= treatment.min_face_px]
        return replace(photo, faces=[photo.faces[index] for index in large], crops=photo.crops[large])

    def _count(self, analysis: Analysis) -> None:
        self.metrics.images.labels("labeled" if analysis.faces else "no_face").inc()
        self.metrics.timings(analysis.timings_ms)
        for face in analysis.faces:
            self.metrics.faces.labels(face.label, str(face.uncertain).lower()).inc()

    def gauge(self) -> None:
        """Update the gauges."""
        self.metrics.queue.set(self.admission.waiting)
        self.metrics.working.set(self.admission.working)
        self.metrics.streams.set(self.admission.streams)
        for model in self.models.values():
            classifier = model.pipeline.classifier
            self.metrics.running.labels(
                model=classifier.manifest.name,
                provider=classifier.provider,
                precision=classifier.precision,
                detector=model.pipeline.detector.name,
                fallback="none" if self.fallback is None else "cpu",
            ).set(1)

    def drain(self) -> None:
        """Make `/ready` return 503 and every response close its connection."""
        self.draining = True

    def close(self) -> None:
        """Finish running photos, and drop queued ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for model in self.models.values():
            if model.batcher is not None:
                model.batcher.close()
