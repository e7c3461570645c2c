"""Labeling on all cores with bounded memory: the main thread forms batches and commits them, a pool labels them.

OpenCV, Pillow, hashlib and ONNX Runtime release the GIL, so threads suffice, and pixels are not copied between
processes. A batch is labeled on one thread: read, decode, detect, align, classify all faces at once, write. Batches are
small and always the same, so that memory is bounded and results do not depend on where an earlier run was stopped. They
are committed in the order in which they were formed; only a few are in progress at a time.
"""

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final

import cv2
import numpy as np

from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.pipeline import Analysis, LabeledFace, Pipeline, PreparedPhoto, timed
from mien.app.labeling.containers import BrokenContainer, NotAVideo, expected_frames, open_container, page_count
from mien.app.labeling.files import disk_errors, parts_dir
from mien.app.labeling.images import (
    ANNOTATED,
    CROPS,
    THUMBS,
    annotated_path,
    copy_images,
    crop_path,
    encode_jpeg,
    encode_png,
    remove_crops,
    thumbnail,
)
from mien.app.labeling.journal import Journal
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.progress import Reporter
from mien.app.labeling.raw import decode_raw, is_raw
from mien.app.labeling.reading import CONTAINERS, TIFFS, failure_of, file_sha256, local_file, read_file
from mien.app.labeling.records import Failure, Input, Result, Status
from mien.app.labeling.signals import Interrupts
from mien.app.labeling.summary import Outcome
from mien.data.atomic import write_atomic
from mien.data.contract import CROP_PX, Array

STAGES: Final = ("read", "decode", "detect", "align", "classify", "write")
BATCH: Final = 16
# Members of archives and decoded frames stay in memory until they are labeled; a batch ends with the one that exceeds
# this.
BATCH_BYTES: Final = 32_000_000
FRAME_BATCH: Final = 4


@dataclass(frozen=True, slots=True)
class Batch:
    """Images labeled and committed together, or the end of a container, with a failure if there is one."""

    inputs: list[Input]
    closes: Input | None = None
    failure: Failure | None = None
    sha256: str = ""


_IN_PROGRESS = deque[tuple[Batch, Future[tuple[list[Result], dict[str, float]]]]]


@dataclass(slots=True)
class Run:
    """A run over the inputs of a journal; `images` is a bit mask of the images that are written during labeling."""

    journal: Journal
    options: LabelOptions
    pipeline: Pipeline
    outcome: Outcome
    images: int = 0
    report: Reporter = field(default_factory=Reporter)
    signals: Interrupts = field(default_factory=Interrupts)

    def label(self) -> bool:
        """Label what is not labeled yet, until all is done, a signal comes or the limit is reached.

        Returns: whether all is labeled. Raises: LabelingError.
        """
        left, complete = self.options.limit, False
        pending: _IN_PROGRESS = deque()
        workers = self.outcome.workers
        with ThreadPoolExecutor(workers, thread_name_prefix="label") as pool, self.signals.deferred():
            try:
                for batch in self._batches():
                    inputs = batch.inputs if left is None else batch.inputs[:left]
                    begun = self.journal.begin(inputs)
                    pending.append((batch, pool.submit(self._label_batch, begun)))
                    if len(pending) > workers + 2:
                        self._commit(pending)
                    if self.signals.received or len(inputs) < len(batch.inputs):
                        break
                    left = None if left is None else left - len(inputs)
                else:
                    complete = True
                while pending:
                    self._commit(pending)
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return complete

    def _label_batch(self, batch: list[Input]) -> tuple[list[Result], dict[str, float]]:
        """Label a batch; an image that cannot be read becomes a result with a reason.

        Returns: results, and milliseconds per stage. Raises: LabelingError.
        """
        pipeline, out = self.pipeline, self.journal.out
        timings_ms = dict.fromkeys(STAGES, 0.0)
        prepared = [self._prepare(item, timings_ms) for item in batch]
        with timed(timings_ms, "classify"):
            crops = [photo.crops for _, photo in prepared if isinstance(photo, PreparedPhoto)]
            probabilities = pipeline.classify(np.concatenate([np.empty((0, CROP_PX, CROP_PX, 3), np.uint8), *crops]))
        results, first = [], 0
        with timed(timings_ms, "write"), disk_errors(out):
            for item, (sha256, photo) in zip(batch, prepared, strict=True):
                bare = replace(item, payload=None, pixels=None)
                if isinstance(photo, Failure):
                    results.append(Result(bare, photo.status, photo.reason, photo.message, sha256))
                    continue
                if isinstance(photo, Result):
                    copy_images(out, photo, item)
                    results.append(replace(photo, input=bare, sha256=sha256, reused=True))
                    continue
                analysis = pipeline.label(photo, probabilities[first : first + len(photo.faces)])
                first += len(photo.faces)
                self._write_images(item, photo.image, analysis)
                faces = tuple(_stored(face, number, item) for number, face in enumerate(analysis.faces))
                status: Status = "ok" if faces else "no_face"
                results.append(Result(bare, status, None, None, sha256, analysis.width, analysis.height, faces))
        return results, timings_ms

    def _prepare(
        self, item: Input, timings_ms: dict[str, float]
    ) -> tuple[str | None, PreparedPhoto | Result | Failure]:
        """SHA-256 of an image, and its faces; the image is kept at the size of its annotated copy."""
        sha256, pipeline = item.sha256 or None, self.pipeline
        if item.failure is not None:
            return sha256, item.failure
        draws = bool(item.images & ANNOTATED)
        payload, pixels = item.payload, item.pixels
        try:
            if payload is None and pixels is None:
                with timed(timings_ms, "read"):
                    payload = read_file(item.path, pipeline.settings.max_bytes)
            sha256 = hashlib.sha256(payload).hexdigest() if payload is not None else sha256
            if (result := self.journal.earlier(item, sha256 or "")) is not None:
                return sha256, result
            if is_raw(item.name):
                with timed(timings_ms, "decode"):
                    pixels = decode_raw(payload or b"", pipeline.settings.max_pixels)
            if pixels is None:
                photo = pipeline.prepare(payload or b"", keep_image=draws)
            else:
                photo = pipeline.prepare_pixels(pixels, keep_image=draws)
            for stage, milliseconds in photo.timings_ms.items():
                timings_ms[stage] += milliseconds
            if photo.image is not None:
                with timed(timings_ms, "write"):
                    photo = replace(photo, image=reduced(photo.image, self.options.annotated_px))
            return sha256, photo
        except Exception as error:  # noqa: BLE001  # one poisoned image must not end a run over a million others
            return sha256, failure_of(error, item.name, payload)

    def _write_images(self, item: Input, view: Array | None, analysis: Analysis) -> None:
        """Write the annotated copy and the crops of an image.

        They are not synced to the disk individually, because this would take longer than labeling.
        """
        out = self.journal.out
        if view is not None:
            copy = encode_jpeg(annotate(view, replace(analysis, faces=self.journal.shown(analysis.faces))))
            write_atomic(out / annotated_path(item.name, item.frame), copy, staging=parts_dir(out), durable=False)
        if item.images & CROPS:
            for number, face in enumerate(analysis.faces):
                path = out / crop_path(item.name, item.frame, number)
                write_atomic(path, encode_png(face.crop), staging=parts_dir(out), durable=False)
        if item.on_disk & CROPS:
            remove_crops(out, item.name, item.frame, first=len(analysis.faces))

    def _commit(self, pending: _IN_PROGRESS) -> None:
        batch, future = pending.popleft()
        results, timings_ms = future.result()
        if batch.closes is not None:
            self.journal.close_container(batch.closes, batch.failure, batch.sha256)
        self.journal.save(results)
        reused = sum(result.reused for result in results)
        self.outcome.new += len(results) - reused
        self.outcome.reused += reused
        for stage, milliseconds in timings_ms.items():
            self.outcome.stage_seconds[stage] += milliseconds / 1000
        errors = [(result.input.name, result.reason, result.error) for result in results if result.status == "error"]
        self.report.labeled(len(results), sum(len(result.faces) for result in results), errors)

    def _batches(self) -> Iterator[Batch]:
        """Batches of inputs sorted by name; they do not depend on what is labeled already."""
        batch: list[Input] = []
        count = 0
        for item, done in self.journal.todo(self.images):
            if item.kind == "file" and not done and item.name.lower().endswith(TIFFS) and page_count(item.path) > 1:
                item = self.journal.has_pages(item)  # noqa: PLW2901
            if item.kind not in CONTAINERS:
                count += 1
                batch += [] if done else [item]
            if batch and (count == BATCH or item.kind in CONTAINERS):
                yield Batch(batch)
                batch = []
            if item.kind in CONTAINERS and not done:
                yield from self._container_batches(item)
            count = 0 if item.kind in CONTAINERS else count % BATCH
        if batch:
            yield Batch(batch)

    def _container_batches(self, container: Input) -> Iterator[Batch]:
        """Batches of the images of an archive or a video, and its end; images before a damage are included."""
        self.journal.open_container(container)
        batch: list[Input] = []
        sha256, failure = "", None
        try:
            with local_file(container.path) as path:
                sha256 = file_sha256(path)
                if container.kind == "video":
                    self.report.expect(expected_frames(path, self.options))
                opened = replace(container, sha256=sha256)
                settings, is_done = self.pipeline.settings, self.journal.is_done
                images = open_container(opened, path, self.options, settings, is_done)
                count = weight = 0
                for child, done in images:
                    batch += [] if done else [child]
                    count, weight = count + 1, weight + (BATCH_BYTES // FRAME_BATCH if child.is_frame else child.size)
                    if count == BATCH or weight >= BATCH_BYTES:
                        if batch:
                            yield Batch(batch)
                        batch, count, weight = [], 0, 0
        except NotAVideo as error:
            failure = Failure("not_an_image", str(error), "skipped")
        except BrokenContainer as error:
            failure = Failure("corrupt", str(error))
        except OSError as error:
            failure = failure_of(error, container.name)
        if batch:
            yield Batch(batch)
        yield Batch([], container, failure, sha256)


def _stored(face: LabeledFace, number: int, item: Input) -> LabeledFace:
    """The face with what the journal stores of its crop, without the crop."""
    by_face = item.kind == "video"  # the review and its exports recognize people
    thumb = thumbnail(face.crop) if by_face or item.images & THUMBS else b""
    return replace(face, number=number, sharpness=sharpness(face.crop), thumb=thumb, crop=face.crop[:0])


def sharpness(crop: Array) -> float:
    """Variance of the Laplacian of a crop's luminance, gray levels squared; below about 20 a face is blurred.

    Args:
        crop: (112, 112, 3) uint8, RGB.
    Source: Pech-Pacheco et al. 2000.
    """
    return float(cv2.Laplacian(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), cv2.CV_32F).var())
