"""Labeling of batches: read, decode, detect, align, classify all faces at once, write copies and crops.

An executor labels batches in order, a few at a time: `Threads` of this process, or tasks of a cluster (`cluster.py`).
"""

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

import cv2

from mien.app.errors import InvalidFace
from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.labeler import Labeler, timed
from mien.app.inference.records import Face, Photo, Prepared
from mien.app.inference.runtime.cpu_count import cores
from mien.app.labeling.face_file import FaceFile, read_face_file
from mien.app.labeling.facts import facts_of, open_pipeline
from mien.app.labeling.files import LabelingError, disk_errors, parts_dir
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
from mien.app.labeling.raw import decode_named, is_named_format
from mien.app.labeling.reading import failure_of, read_file
from mien.app.labeling.records import Failure, Input, Result, Status
from mien.app.settings import Settings
from mien.data.atomic import write_atomic
from mien.data.contract import Array
from mien.data.contract.decode import icc_profile

STAGES: Final = ("read", "decode", "detect", "align", "classify", "write")
Earlier = Callable[[Input, str], Result | None]  # the earlier result of a moved input with this hash


@dataclass(frozen=True, slots=True)
class Batch:
    """Images labeled and committed together, or the end of a container, with a failure if there is one."""

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
        """Read the given faces, if the options name a file. Raises: LabelingError."""
        self.pipeline, self.options = pipeline, options
        self.face_file = None if options.boxes is None else read_face_file(options.boxes)
        self.facts = facts_of(pipeline, options, self.face_file)

    def label(self, batch: Sequence[Input], earlier: Earlier) -> BatchResult:
        """Label a batch; an image on which a stage fails becomes a result with a reason.

        Raises: LabelingError, if images cannot be written, or if no image of the batch can be classified.
        """
        timings_ms = dict.fromkeys(STAGES, 0.0)
        prepared = [self._prepare(item, earlier, timings_ms) for item in batch]
        analyses = self._classify([photo for _, photo, _ in prepared if isinstance(photo, Prepared)])
        for labeled_photo in analyses:
            for stage, milliseconds in labeled_photo.timings_ms.items() if isinstance(labeled_photo, Photo) else ():
                timings_ms[stage] += milliseconds
        labeled = iter(analyses)
        results = []
        with timed(timings_ms, "write"), disk_errors(self.options.out):
            for item, (sha256, photo, problem) in zip(batch, prepared, strict=True):
                bare = replace(item, payload=None, pixels=None)
                outcome = next(labeled) if isinstance(photo, Prepared) else photo
                if isinstance(outcome, Photo):
                    outcome = self._written(item, outcome)
                if isinstance(outcome, Exception):
                    outcome = failure_of(outcome, item.name)
                if isinstance(outcome, Failure):
                    results.append(Result(bare, outcome.status, outcome.reason, outcome.message, sha256))
                    continue
                if outcome.reused:
                    copy_images(self.options.out, outcome, item)
                if problem:
                    outcome = replace(outcome, reason="invalid_face", error=problem)
                results.append(replace(outcome, input=bare, sha256=sha256))
        return BatchResult(results, timings_ms)

    def _prepare(
        self, item: Input, earlier: Earlier, timings_ms: dict[str, float]
    ) -> tuple[str | None, Prepared | Result | Failure, str]:
        """SHA-256 of an image, its faces, and a message about given ones that cannot be used.

        The image is kept at the size of its annotated copy.
        """
        sha256, pipeline = item.sha256 or None, self.pipeline
        if item.failure is not None:
            return sha256, item.failure, ""
        draws = bool(item.images & ANNOTATED)
        payload, pixels = item.payload, item.pixels
        try:
            if payload is None and pixels is None:
                with timed(timings_ms, "read"):
                    payload = read_file(item.path, pipeline.settings.max_bytes)
            sha256 = hashlib.sha256(payload).hexdigest() if payload is not None else sha256
            # faces of a file belong to a name, not to its bytes
            if self.face_file is None and (result := earlier(item, sha256 or "")) is not None:
                return sha256, replace(result, reused=True), ""
            if is_named_format(item.name):
                with timed(timings_ms, "decode"):
                    pixels = decode_named(item.name, payload or b"", pipeline.settings.max_pixels)
            photo, problem = self._faces(item, payload or b"" if pixels is None else pixels, keep_pixels=draws)
            if photo.pixels is not None:
                with timed(timings_ms, "write"):
                    profile = b"" if is_named_format(item.name) else icc_profile(payload or b"")
                    photo = replace(photo, pixels=reduced(photo.pixels, self.options.annotated_px), icc_profile=profile)
            return sha256, photo, problem
        except Exception as error:  # noqa: BLE001  # one poisoned image must not end a run over a million others
            return sha256, failure_of(error, item.name, payload), ""

    def _faces(self, item: Input, image: bytes | Array, *, keep_pixels: bool) -> tuple[Prepared, str]:
        """Faces of an image, and a message about given ones that cannot be used: the others are labeled all the same.

        Raises: see `Labeler.prepare`.
        """
        options = self.options
        boxes = None if self.face_file is None else self.face_file.of(item)
        chosen: dict[str, Any] = {"aligned": options.aligned, "whole": options.whole, "keep_pixels": keep_pixels}
        try:
            return self.pipeline.prepare(image, boxes=boxes, **chosen), ""
        except InvalidFace as error:
            usable = [box for index, box in enumerate(boxes or ()) if index not in error.indexes]
            if not usable:
                raise
            return self.pipeline.prepare(image, boxes=usable, **chosen), str(error)

    def _classify(self, photos: Sequence[Prepared]) -> list[Photo | Exception]:
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
            faces = tuple(_stored(face, item) for face in analysis.faces)
        except OSError:  # of the disk, which ends the run
            raise
        except Exception as error:  # noqa: BLE001  # as in `_prepare`: an image that is too large for a JPEG
            return error
        status: Status = "ok" if faces else "no_face"
        notes = (*item.notes, *analysis.notes)
        return Result(item, status, width=analysis.width, height=analysis.height, faces=faces, notes=notes)

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
                write_atomic(path, encode_png(face.crop), staging=parts_dir(out), durable=False)
        if item.on_disk & CROPS:
            remove_crops(out, item.name, item.frame, first=len(analysis.faces))


class Executor(Protocol):
    """Labels the batches of a run; `facts` are those of its models, and `face_file` has the given faces."""

    facts: dict[str, str]
    face_file: FaceFile | None
    workers: int

    def map(self, batches: Iterable[Batch], journal: Journal) -> Generator[tuple[Batch, BatchResult], None, None]:
        """Label batches, in order; a batch is taken from the iterator when a worker will soon be free."""
        ...


class Threads:
    """Threads of this process over one pipeline.

    OpenCV, Pillow, hashlib and ONNX Runtime release the GIL, so threads suffice, and pixels are not copied.
    """

    def __init__(self, options: LabelOptions, settings: Settings) -> None:
        self._labeler = BatchLabeler(open_pipeline(settings), options)
        self.facts, self.face_file = self._labeler.facts, self._labeler.face_file
        self.workers = options.workers or cores()

    def map(self, batches: Iterable[Batch], journal: Journal) -> Generator[tuple[Batch, BatchResult], None, None]:
        """Label batches in order."""
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="label")
        try:
            yield from in_order(
                batches,
                lambda batch: pool.submit(self._labeler.label, batch.inputs, journal.earlier).result,
                self.workers + 2,
            )
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


def _stored(face: Face, item: Input) -> Face:
    """The face with what the journal stores of its crop, without the crop."""
    by_face = item.kind == "video"  # the review and its exports recognize people
    thumb = thumbnail(face.crop) if by_face or item.images & THUMBS else b""
    return replace(face, sharpness=sharpness(face.crop), thumb=thumb, crop=face.crop[:0])


def sharpness(crop: Array) -> float:
    """Variance of the Laplacian of a crop's luminance, gray levels squared; below about 20 a face is blurred.

    Args:
        crop: (112, 112, 3) uint8, RGB.
    Source: Pech-Pacheco et al. 2000.
    """
    return float(cv2.Laplacian(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), cv2.CV_32F).var())
