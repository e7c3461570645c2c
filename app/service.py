"""How does one process answer many requests? Photos in a bounded pool of threads, off the event loop.

Flow: upload -> turn -> decode, detect, align (a thread per core) -> classify (one thread, the faces of all requests
joined) -> record. The pool is as wide as there are cores: more threads would only make every photo slower.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from app import bombs
from app.admission import Admission, AdmissionLimits
from app.batching import Batcher, BatchLimits
from app.classify import Classifier
from app.cores import cores
from app.errors import CapacityError, RequestError
from app.metrics import Metrics
from app.pipeline import Analysis, Pipeline, Seen, timed
from app.providers import CPU, cuda_obstacle
from app.settings import Settings
from app.upload import Upload, UploadLimits
from data.contract import Array, DecodeError

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """An upload that could be read; `image` is (H, W, 3) uint8 RGB, held only where the caller asked to keep it."""

    analysis: Analysis
    image: Array | None


@dataclass(frozen=True, slots=True)
class Refused:
    """An upload that could not be read."""

    error: RequestError | CapacityError | DecodeError


Answer = Labelled | Refused


def fallback(classifier: Classifier, settings: Settings) -> str | None:
    """Why `auto` took the CPU, in words; None where the model runs on a GPU, or was meant for the CPU, as int8 is."""
    if settings.device != "auto" or settings.precision == "int8" or classifier.provider != CPU:
        return None
    return cuda_obstacle() or "the model does not run on the GPU that is there: the log of the start says why"


class Service:
    """One process's pipeline, its threads, and who is inside. Belongs to one event loop."""

    def __init__(self, pipeline: Pipeline, settings: Settings, metrics: Metrics) -> None:
        self.pipeline = pipeline
        self.settings = settings
        self.metrics = metrics
        self.threads = cores()
        self.fallback = fallback(pipeline.classifier, settings)
        self.draining = False
        self.streams = 0
        self.upload_limits = UploadLimits(settings.max_body_bytes, settings.max_bytes, settings.max_images)
        self.admission = Admission(
            AdmissionLimits(
                concurrent=settings.max_concurrent or max(8, 4 * self.threads),
                queue=settings.max_queue,
                wait_s=settings.max_wait_s,
                per_client=settings.max_per_client,
                buffered_bytes=settings.max_buffered_bytes,
            )
        )
        self.batcher = Batcher(
            pipeline.classify,
            BatchLimits(
                max_faces=settings.max_batch or pipeline.classifier.max_batch,
                max_wait_s=settings.batch_wait_ms / 1000.0,
                max_queue=settings.batch_queue,
            ),
            on_batch=metrics.batch_faces.observe,
        )
        self._pixels = bombs.PixelBudget(settings.max_pixels_at_once)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="mien-photo")

    async def in_thread(self, function: Callable[..., T], *args: object) -> T:
        """Run in the pool; a call that is cancelled before a thread took it never runs."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function, *args)

    async def answer(
        self, uploads: Sequence[Upload], *, min_face_px: float | None = None, keep_image: bool = False
    ) -> list[Answer]:
        """Label the faces of every upload, in order. An image that cannot be read is an answer with its error."""
        side_by_side = asyncio.Semaphore(self.threads)

        async def one(upload: Upload) -> Answer:
            async with side_by_side:
                return await self._answer(upload.payload, min_face_px, keep_image)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(upload)) for upload in uploads]
        return [task.result() for task in tasks]

    async def _answer(self, payload: bytes, min_face_px: float | None, keep_image: bool) -> Answer:
        try:
            seen = await self.in_thread(self._see, payload, min_face_px, keep_image)
            with timed(seen.timings_ms, "classify"):
                probabilities = await self.batcher.classify(seen.crops)
        except (RequestError, CapacityError, DecodeError) as error:
            self.metrics.images.labels("refused").inc()
            return Refused(error)
        analysis = self.pipeline.answer(seen, probabilities)
        self._count(analysis)
        return Labelled(analysis, seen.image)

    def _see(self, payload: bytes, min_face_px: float | None, keep_image: bool) -> Seen:
        pixels = bombs.check(payload, max_pixels=self.settings.max_pixels)
        with self._pixels.hold(pixels):
            seen = self.pipeline.see(payload, keep_image=keep_image)
        if min_face_px is None:
            return seen
        large = [index for index, face in enumerate(seen.faces) if min(face.box_px[2:]) >= min_face_px]
        return replace(seen, faces=[seen.faces[index] for index in large], crops=seen.crops[large])

    def _count(self, analysis: Analysis) -> None:
        self.metrics.images.labels("labelled" if analysis.faces else "no_face").inc()
        self.metrics.timings(analysis.timings_ms)
        for face in analysis.faces:
            self.metrics.faces.labels("uncertain" if face.uncertain else face.label).inc()

    def gauge(self) -> None:
        """Bring the gauges up to now."""
        classifier = self.pipeline.classifier
        self.metrics.queue.set(self.admission.waiting)
        self.metrics.working.set(self.admission.working)
        self.metrics.streams.set(self.streams)
        self.metrics.running.labels(
            model=classifier.manifest.name,
            provider=classifier.provider,
            precision=classifier.precision,
            detector=self.pipeline.detector.name,
            fallback="none" if self.fallback is None else "cpu",
        ).set(1)

    def drain(self) -> None:
        """From now on `/ready` says no and every answer asks its client to connect anew."""
        self.draining = True

    def close(self) -> None:
        """Let running photos finish and drop those that no thread took."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.batcher.close()
