"""Labeling of batches: read, decode, detect, align, classify all faces at once, write copies and crops.

An executor labels batches in order, a few at a time: `Threads` of this process, or tasks of a cluster (`cluster.py`).
"""

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final, Protocol

from PIL import Image

from mien.app.cpu_count import cores
from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.labeler import Labeler, timed
from mien.app.inference.records import Face, Photo
from mien.app.labeling.facts import facts_of, open_pipeline
from mien.app.labeling.files import LabelingError, disk_errors, parts_dir
from mien.app.labeling.images import (
    ANNOTATED,
    CROPS,
    THUMBS,
    annotated_path,
    crop_path,
    encode_jpeg,
    encode_png,
    remove_crops,
    thumbnail,
)
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.reading import failure_of, read_file
from mien.app.labeling.records import Failure, Input, Result, Status
from mien.app.settings import Settings
from mien.data.atomic import write_atomic
from mien.data.contract import Array
from mien.data.contract.decode import icc_profile

STAGES: Final = ("read", "decode", "detect", "align", "classify", "write")
Image.MAX_IMAGE_PIXELS = None  # `max_pixels` replaces Pillow's own limit


@dataclass(frozen=True, slots=True)
class Batch:
    """Images labeled and committed together, or the end of a video, with a failure if there is one."""

    inputs: list[Input]
    closes: Input | None = None
    failure: Failure | None = None
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Results of a batch, and milliseconds per stage."""

    results: list[Result]
    timings_ms: dict[str, float]


class BatchLabeler:
    """Labels batches with one pipeline; thread-safe."""

    def __init__(self, pipeline: Labeler, options: LabelOptions) -> None:
        self.pipeline, self.options = pipeline, options
        self.facts = facts_of(pipeline, options)

    def label(self, batch: Sequence[Input]) -> BatchResult:
        """Label a batch; an image on which a stage fails becomes a result with a reason.

        Raises: LabelingError, if images cannot be written, or if no image of the batch can be classified.
        """
        timings_ms = dict.fromkeys(STAGES, 0.0)
        prepared = [self._prepare(item, timings_ms) for item in batch]
        analyses = self._classify([photo for _, photo in prepared if isinstance(photo, Photo)])
        for labeled_photo in analyses:
            for stage, milliseconds in labeled_photo.timings_ms.items() if isinstance(labeled_photo, Photo) else ():
                timings_ms[stage] += milliseconds
        labeled = iter(analyses)
        results = []
        with timed(timings_ms, "write"), disk_errors(self.options.out):
            for item, (sha256, photo) in zip(batch, prepared, strict=True):
                bare = replace(item, pixels=None)
                outcome: Photo | Result | Failure | Exception = next(labeled) if isinstance(photo, Photo) else photo
                if isinstance(outcome, Photo):
                    outcome = self._written(item, outcome)
                if isinstance(outcome, Exception):
                    outcome = failure_of(outcome, item.name)
                if isinstance(outcome, Failure):
                    results.append(Result(bare, outcome.status, outcome.reason, outcome.message, sha256))
                    continue
                results.append(replace(outcome, input=bare, sha256=sha256))
        return BatchResult(results, timings_ms)

    def _prepare(self, item: Input, timings_ms: dict[str, float]) -> tuple[str | None, Photo | Failure]:
        """SHA-256 of an image, and its faces; the image is kept at the size of its annotated copy."""
        sha256, pipeline = item.sha256 or None, self.pipeline
        if item.failure is not None:
            return sha256, item.failure
        payload: bytes | None = None
        draws = bool(item.images & ANNOTATED)
        try:
            image: bytes | Array | None = item.pixels
            if image is None:
                with timed(timings_ms, "read"):
                    image = payload = read_file(item.path, pipeline.settings.max_bytes)
                sha256 = hashlib.sha256(payload).hexdigest()
            photo = pipeline.prepare(image, whole=self.options.whole, keep_pixels=draws)
            if photo.pixels is not None:
                with timed(timings_ms, "write"):
                    pixels = reduced(photo.pixels, self.options.annotated_px)
                    photo = replace(photo, pixels=pixels, icc_profile=icc_profile(payload or b""))
            return sha256, photo
        except Exception as error:  # noqa: BLE001  # one poisoned image must not end a run over a million others
            return sha256, failure_of(error, item.name, payload)

    def _classify(self, photos: Sequence[Photo]) -> list[Photo | Exception]:
        """Classify all faces at once, or photo by photo if this fails, as when memory is short.

        Raises: LabelingError, if it fails for every one of several photos.
        """
        try:
            return [*self.pipeline.classify(photos)]
        except Exception as error:  # as in `_prepare`
            if len(photos) == 1:
                return [error]
            analyses = [self._classify([photo])[0] for photo in photos]
            failed = sum(isinstance(analysis, Exception) for analysis in analyses)
            if 1 < failed == sum(len(photo.detections) > 0 for photo in photos):
                raise LabelingError(f"the model cannot run: {error}. Rerun the same command to resume.") from error
            return analyses

    def _written(self, item: Input, analysis: Photo) -> Result | Exception:
        """Write the images of an input; its result, or the error of a stage that failed. Raises: OSError."""
        try:
            self._write_images(item, analysis)
            faces = tuple(_stored(face, crop, item) for face, crop in zip(analysis.faces, analysis.crops, strict=True))
        except OSError:  # of the disk, which ends the run
            raise
        except Exception as error:  # noqa: BLE001  # as in `_prepare`: an image that is too large for a JPEG
            return error
        status: Status = "ok" if faces else "no_face"
        return Result(item, status, width=analysis.width, height=analysis.height, faces=faces, notes=analysis.notes)

    def _write_images(self, item: Input, analysis: Photo) -> None:
        """Write the annotated copy and the crops of an image.

        They are not synced to the disk individually, because this would take longer than labeling.
        """
        out = self.options.out
        if analysis.pixels is not None:
            copy = encode_jpeg(annotate(analysis.pixels, analysis), icc_profile=analysis.icc_profile)
            write_atomic(out / annotated_path(item.name, item.frame), copy, staging=parts_dir(out), durable=False)
        if item.images & CROPS:
            for face in analysis.faces:
                path = out / crop_path(item.name, item.frame, face.index)
                write_atomic(path, encode_png(analysis.crops[face.index]), staging=parts_dir(out), durable=False)
        if item.on_disk & CROPS:
            remove_crops(out, item.name, item.frame, first=len(analysis.faces))


class Executor(Protocol):
    """Labels the batches of a run; `facts` are those of its models."""

    facts: dict[str, str]
    workers: int

    def map(self, batches: Iterable[Batch]) -> Generator[tuple[Batch, BatchResult], None, None]:
        """Label batches, in order; a batch is taken from the iterator when a worker will soon be free."""
        ...


class Threads:
    """Threads of this process over one pipeline.

    OpenCV, Pillow, hashlib and ONNX Runtime release the GIL, so threads suffice, and pixels are not copied.
    """

    def __init__(self, options: LabelOptions, settings: Settings) -> None:
        self._labeler = BatchLabeler(open_pipeline(settings), options)
        self.facts = self._labeler.facts
        self.workers = options.workers or cores()

    def map(self, batches: Iterable[Batch]) -> Generator[tuple[Batch, BatchResult], None, None]:
        """Label batches in order."""
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="label")
        try:
            label = self._labeler.label
            yield from in_order(batches, lambda batch: pool.submit(label, batch.inputs).result, self.workers + 2)
        finally:
            pool.shutdown(cancel_futures=True)


def in_order(
    batches: Iterable[Batch], submit: Callable[[Batch], Callable[[], BatchResult]], ahead: int
) -> Generator[tuple[Batch, BatchResult], None, None]:
    """Submit batches, at most `ahead` before the one whose result is awaited, and yield them with their results."""
    pending: deque[tuple[Batch, Callable[[], BatchResult]]] = deque()
    for batch in batches:
        pending.append((batch, submit(batch)))
        if len(pending) > ahead:
            first, result = pending.popleft()
            yield first, result()
    for last, result in pending:
        yield last, result()


def _stored(face: Face, crop: Array, item: Input) -> Face:
    """The face with what the journal stores of its crop, without the crop."""
    by_face = item.kind == "video"  # the review and its exports recognize people
    thumb = thumbnail(crop) if by_face or item.images & THUMBS else b""
    return replace(face, thumb=thumb, crop_rgb=None)
