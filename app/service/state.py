"""Service of one process: its models, and a thread pool that keeps image processing off the event loop.

Flow: upload -> slot -> decode, detect, align, classify, render in one thread of the pool. The pool has one thread per
core; more threads would only slow down each photo. A GPU classifies the faces of all requests together instead.
"""

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeVar

import PIL.Image

from mien.app.errors import CapacityError, InvalidRequest, RequestError
from mien.app.inference import image_guard
from mien.app.inference.batcher import Batcher
from mien.app.inference.classifier import Classifier
from mien.app.inference.in_browser import BrowserPipeline, browser_pipeline
from mien.app.inference.pipeline import Analysis, Pipeline, PreparedPhoto, timed
from mien.app.inference.runtime.cpu_count import cores
from mien.app.inference.runtime.sessions import CPU, cuda_obstacle, gpu_obstacle
from mien.app.service.admission import Admission
from mien.app.service.jobs import Jobs
from mien.app.service.metrics import Metrics
from mien.app.service.schemas import LabelOptions
from mien.app.settings import Settings
from mien.data.contract import Array, DecodeError
from mien.data.contract.decode import Probe

PIL.Image.MAX_IMAGE_PIXELS = None  # `max_pixels` replaces Pillow's own limit

T = TypeVar("T")
_LAST_RESPONSE_S: Final = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model that requests can select, with its batcher if it runs on a GPU."""

    pipeline: Pipeline
    batcher: Batcher | None

    async def classify(self, crops: Array) -> Array:
        """Probabilities (N, 7) of crops."""
        if self.batcher is None:
            return await asyncio.to_thread(self.pipeline.classify, crops)
        return await self.batcher.classify(crops)

    def threshold(self, requested: float | None) -> float:
        """Confidence threshold of a request; that of the model if the request has none."""
        return self.pipeline.classifier.manifest.abstain_threshold if requested is None else requested


def fallback(classifier: Classifier, settings: Settings) -> str | None:
    """Reason why the model runs on the CPU although there is a GPU, or `auto` was set explicitly; None otherwise."""
    if settings.device != "auto" or settings.precision == "int8" or classifier.provider != CPU:
        return None
    if "device" not in settings.model_fields_set and gpu_obstacle() is not None:
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
        self.requests: set[asyncio.Task[object] | None] = set()  # and streams
        self.admission = Admission(settings, self._gauge)
        self.models = {name: Model(pipeline, self._batcher(pipeline)) for name, pipeline in pipelines.items()}
        for model in self.models.values():
            classifier = model.pipeline.classifier
            metrics.running.labels(
                model=classifier.manifest.name,
                provider=classifier.provider,
                precision=classifier.precision,
                detector=model.pipeline.detector.name,
                fallback="none" if self.fallback is None else "cpu",
            ).set(1)
        self.jobs = None if settings.jobs_dir is None else Jobs(settings.jobs_dir, settings)
        self._pixels = image_guard.PixelBudget(settings.max_pixels_at_once)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="mien-photo")

    def _batcher(self, pipeline: Pipeline) -> Batcher | None:
        if pipeline.classifier.provider == CPU:
            return None  # photos in parallel have a higher throughput and shorter waits than shared inferences
        return Batcher(
            pipeline.classify,
            max_faces=self.settings.max_batch or pipeline.classifier.max_batch,
            max_wait_s=self.settings.batch_wait_ms / 1000.0,
            max_queue=self.settings.batch_queue,
            on_batch=self.metrics.batch_faces.observe,
        )

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

    async def label(self, payload: bytes, options: LabelOptions, render: Callable[[Analysis], T]) -> T:
        """Label the faces of one image; `render` converts the analysis to a response, in a thread.

        Raises: InvalidRequest, for a model that is not loaded; DecodeError, RequestError or CapacityError, for an image
            that cannot be labeled.
        """
        model = self.model(options.model)
        pipeline, batcher = model.pipeline, model.batcher

        def prepare(reserve: Callable[[int], None]) -> PreparedPhoto:
            def admit(size: Probe) -> None:
                reserve(image_guard.memory_px(size))

            if options.aligned:
                return pipeline.prepare_crop(payload, admit=admit)
            smallest = options.min_face_px or 0.0
            return pipeline.prepare(payload, min_face_px=smallest, keep_image=options.annotate, admit=admit)

        def prepare_alone() -> PreparedPhoto:
            with self._pixels.reservation() as reserve:
                return prepare(reserve)

        def finish(photo: PreparedPhoto, probabilities: Array) -> T:
            analysis = pipeline.label(photo, probabilities, threshold=options.confidence_threshold)
            self._count(analysis)
            return render(analysis)

        def all_stages() -> T:
            with self._pixels.reservation() as reserve:  # also of the pixels that `render` draws on
                photo = prepare(reserve)
                with timed(photo.timings_ms, "classify"):
                    probabilities = (
                        pipeline.classify(photo.crops) if batcher is None else batcher.submit(photo.crops).result()
                    )
                return finish(photo, probabilities)

        try:
            if options.annotate or pipeline.classifier.provider == CPU:  # the thread of a photo does it all
                return await self.in_thread(all_stages)
            photo = await self.in_thread(prepare_alone)
            with timed(photo.timings_ms, "classify"):
                probabilities = await model.classify(photo.crops)
            return await self.in_thread(finish, photo, probabilities)
        except (RequestError, CapacityError, DecodeError):
            self.metrics.images.labels("refused").inc()
            raise

    def _count(self, analysis: Analysis) -> None:
        self.metrics.images.labels("labeled" if analysis.faces else "no_face").inc()
        if analysis.faces and self.pipeline.classifier.provider == CPU:
            self.metrics.batch_faces.observe(len(analysis.faces))
        for stage, milliseconds in analysis.timings_ms.items():
            self.metrics.stage_seconds.labels(stage).observe(milliseconds / 1000.0)
        for face in analysis.faces:
            self.metrics.faces.labels(face.label, str(face.uncertain).lower()).inc()

    def _gauge(self) -> None:
        """Update the gauges, at every change: with several workers, only one of them responds to a scrape."""
        self.metrics.queue.set(self.admission.waiting)
        self.metrics.working.set(self.admission.working)
        self.metrics.streams.set(self.admission.streams)

    def drain(self) -> None:
        """Make `/ready` return 503 and every response close its connection."""
        self.draining = True

    async def ended(self) -> None:
        """Wait for requests that the server has canceled: they respond, and remove their uploads."""
        if running := {task for task in self.requests if task is not None}:
            await asyncio.wait(running, timeout=_LAST_RESPONSE_S)

    def close(self) -> None:
        """Finish running photos, and drop queued ones."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        for model in self.models.values():
            if model.batcher is not None:
                model.batcher.close()
