"""Service of one process: its model, and a thread pool that keeps image processing off the event loop.

Flow: upload -> slot -> decode, detect, align, classify, render in one thread of the pool. The pool has one thread per
core; more threads would only slow down each photo. A GPU classifies the faces of all threads together.
"""

import asyncio
import contextvars
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TypeVar

from mien.app.cpu_count import cores
from mien.app.errors import CapacityError, RequestError
from mien.app.inference.classifier import CPU, Classifier, cuda_unavailable_reason, gpu_unavailable_reason
from mien.app.inference.decode import PixelBudget, memory_px
from mien.app.inference.in_browser import BrowserPipeline, browser_pipeline
from mien.app.inference.labeler import Labeler
from mien.app.inference.records import Box, Photo
from mien.app.service.admission import Admission
from mien.app.service.metrics import Metrics
from mien.app.service.schemas import LabelOptions
from mien.app.settings import Settings
from mien.data.contract import DecodeError

T = TypeVar("T")


def fallback(classifier: Classifier, settings: Settings) -> str | None:
    """Reason why the model runs on the CPU although there is a GPU, or `auto` was set explicitly; None otherwise."""
    if settings.device != "auto" or settings.precision == "int8" or classifier.provider != CPU:
        return None
    if "device" not in settings.model_fields_set and gpu_unavailable_reason() is not None:
        return None
    return cuda_unavailable_reason() or "the model does not run on the GPU of this machine: see the log of the start"


class Service:
    """Models, threads and admission control of one process. Belongs to one event loop."""

    def __init__(self, labeler: Labeler, settings: Settings, metrics: Metrics) -> None:
        self.labeler = labeler
        self.settings = settings
        self.metrics = metrics
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
