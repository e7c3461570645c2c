"""What does one worker do with a group of pictures? Read, decode, detect, align one by one; classify all faces at once.

A group is small and always made of the same pictures, so that memory is bounded and results do not depend on where an
earlier run was stopped.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from app.detect import Face
from app.draw import annotate, reduced
from app.labelling.files import disk_errors, write_picture
from app.labelling.products import (
    ANNOTATED,
    CROPS,
    THUMBS,
    ProductOptions,
    annotated_path,
    crop_path,
    encode_jpeg,
    encode_png,
    thumbnail,
)
from app.labelling.records import FaceRecord, Failure, Item, PictureRecord, Status, sha256_hex
from app.labelling.scan import PICTURES
from app.pipeline import Analysis, LabelledFace, Pipeline
from data.contract import CROP_PX, Array, DecodeError, ImageTooLarge, UnsupportedImage

STAGES: Final = ("read", "decode", "detect", "align", "classify", "write")


@dataclass(frozen=True, slots=True)
class Job:
    """What every worker of a run is told: where to write, and how."""

    out: Path
    options: ProductOptions


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """One picture between alignment and classification; `view` is a reduced copy, for drawing."""

    item: Item
    sha256: str
    width: int = 0
    height: int = 0
    faces: tuple[Face, ...] = ()
    crops: Array | None = None
    view: Array | None = None
    failure: Failure | None = None


class Worker:
    """Labels groups of items with one pipeline; not shared between threads."""

    def __init__(self, pipeline: Pipeline, job: Job) -> None:
        """Take a pipeline whose detector no other thread uses."""
        self._pipeline = pipeline
        self._job = job
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def label(self, group: Sequence[Item]) -> list[PictureRecord]:
        """Label a group; a picture that cannot be read is a record with its failure. Raises: DiskFull."""
        prepared = [self._prepare(item) for item in group]
        with self._timed("classify"):
            probabilities = self._pipeline.classify(_joined([one.crops for one in prepared]))
        records = []
        start = 0
        for one in prepared:
            count = len(one.faces)
            records.append(self._finish(one, probabilities[start : start + count]))
            start += count
        return records

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[stage] += time.perf_counter() - start

    def _prepare(self, item: Item) -> _Prepared:
        sha256 = item.sha256 or ""
        if item.failure is not None:
            return _Prepared(item, sha256, failure=item.failure)
        try:
            with self._timed("read"):
                payload = self._payload(item)
                sha256 = sha256 or (sha256_hex(payload) if payload is not None else "")
            with self._timed("decode"):
                image = self._pipeline.decode(payload) if payload is not None else item.pixels
            assert image is not None  # noqa: S101  # an item has bytes, pixels or a failure
            return self._faces(item, sha256, image)
        except Exception as error:  # noqa: BLE001  # one poisoned picture must not end a run over a million others
            return _Prepared(_emptied(item), sha256, failure=failure_of(error, item.name))

    def _payload(self, item: Item) -> bytes | None:
        if item.pixels is not None:
            return None
        return read_file(item, self._pipeline.settings.max_bytes) if item.payload is None else item.payload

    def _faces(self, item: Item, sha256: str, image: Array) -> _Prepared:
        with self._timed("detect"):
            faces = self._pipeline.detect(image)
        with self._timed("align"):
            crops = self._pipeline.crop(image, faces)
        view = None
        if item.products & ANNOTATED:
            with self._timed("write"):
                view = reduced(image, self._job.options.annotated_px)
        height, width = image.shape[:2]
        return _Prepared(_emptied(item), sha256, width, height, tuple(faces), crops, view)

    def _finish(self, one: _Prepared, probabilities: Array) -> PictureRecord:
        if one.failure is not None or one.crops is None:
            failure = one.failure or Failure("failed", "no pixels")
            return PictureRecord(one.item, failure.status, sha256=one.sha256, failure=failure)
        analysis = self._analysis(one, probabilities)
        with self._timed("write"):
            self._write_products(one, analysis)
            faces = tuple(self._face(face, one.item.products) for face in analysis.faces)
        status: Status = "ok" if faces else "no_face"
        return PictureRecord(one.item, status, one.width, one.height, one.sha256, faces, products=one.item.products)

    def _analysis(self, one: _Prepared, probabilities: Array) -> Analysis:
        assert one.crops is not None  # noqa: S101  # the caller has checked
        blank = np.broadcast_to(np.uint8(0), (one.height, one.width, 3))  # only its size is read
        return self._pipeline.assemble(blank, list(one.faces), one.crops, probabilities, {})

    def _face(self, face: LabelledFace, products: int) -> FaceRecord:
        return FaceRecord(
            box_px=face.face.box_px,
            landmarks_px=face.face.landmarks_px,
            score=face.face.score,
            probabilities=face.probabilities,
            label=face.label,
            confidence=face.confidence,
            uncertain=face.uncertain,
            roll_degrees=face.roll_degrees,
            sharpness=sharpness(face.crop),
            thumb=thumbnail(face.crop, self._job.options) if products & THUMBS else b"",
        )

    def _write_products(self, one: _Prepared, analysis: Analysis) -> None:
        out, item = self._job.out, one.item
        with disk_errors(out):
            if one.view is not None:
                payload = encode_jpeg(annotate(one.view, analysis), self._job.options.quality)
                write_picture(out, annotated_path(out, item.name, item.frame), payload)
            if item.products & CROPS:
                for number, face in enumerate(analysis.faces):
                    write_picture(out, crop_path(out, item.name, item.frame, number), encode_png(face.crop))


def _emptied(item: Item) -> Item:
    """The item without its bytes and pixels, which are not needed after decoding."""
    return replace(item, payload=None, pixels=None)


def _joined(parts: list[Array | None]) -> Array:
    crops = [part for part in parts if part is not None and len(part)]
    return np.concatenate(crops) if crops else np.empty((0, CROP_PX, CROP_PX, 3), np.uint8)


def read_file(item: Item, max_bytes: int) -> bytes:
    """The file's bytes; refused by its size before they are read. Raises: OSError, DecodeError."""
    with open(os.fsdecode(item.path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise _TooManyBytes(f"{size:,} bytes: at most {max_bytes:,} are read (MIEN_MAX_BYTES)")
        return file.read(max_bytes + 1)


class _TooManyBytes(DecodeError):
    """A file larger than the limit."""


def failure_of(error: Exception, name: str) -> Failure:
    """The row's reason for an error met while reading or decoding."""
    known = os.path.splitext(name)[1].lower() in PICTURES
    if isinstance(error, UnsupportedImage):
        reason = "unsupported" if known else "not_a_picture"
        return Failure(reason, str(error), "error" if known else "skipped")
    if isinstance(error, _TooManyBytes | ImageTooLarge | MemoryError):
        return Failure("too_large", str(error) or "out of memory", "error" if known else "skipped")
    if isinstance(error, DecodeError):
        empty = str(error).startswith("empty")
        return Failure("empty" if empty else "corrupt", str(error), "error" if known else "skipped")
    if isinstance(error, PermissionError):
        return Failure("permission_denied", "this file may not be read by this user")
    if isinstance(error, FileNotFoundError):
        return Failure("not_found", "this file was there at the scan and is gone")
    if isinstance(error, OSError):
        return Failure("unreadable", error.strerror or str(error))
    return Failure("failed", f"{type(error).__name__}: {error}")


def sharpness(crop: Array) -> float:
    """Variance of the Laplacian of a crop's luminance, gray levels squared; below about 20 a face is blurred.

    Args:
        crop: (112, 112, 3) uint8, RGB.
    Source: Pech-Pacheco et al. 2000.
    """
    return float(cv2.Laplacian(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), cv2.CV_32F).var())
