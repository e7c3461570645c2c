"""Worker that reads, decodes, detects and aligns the images of a group, and classifies all faces in one batch.

Groups are small and always the same, so that memory is bounded and results do not depend on where an earlier run was
stopped.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import cv2
import numpy as np

from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.pipeline import Analysis, LabeledFace, Pipeline, PreparedPhoto
from mien.app.labeling.files import disk_errors
from mien.app.labeling.output_folder import OutputFolder
from mien.app.labeling.products import (
    ANNOTATED,
    ANNOTATED_DIR,
    CROPS,
    CROPS_DIR,
    THUMBS,
    annotated_path,
    crop_path,
    encode_jpeg,
    encode_png,
    thumbnail,
)
from mien.app.labeling.reading import failure_of, read_file
from mien.app.labeling.records import Failure, ImageRecord, Item, Status
from mien.app.labeling.request import Request
from mien.data.contract import CROP_PX, Array

STAGES: Final = ("read", "decode", "detect", "align", "classify", "write")


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """One image between alignment and classification; `view` is a reduced copy, for drawing."""

    item: Item
    sha256: str
    photo: PreparedPhoto | None = None
    view: Array | None = None
    failure: Failure | None = None


class Worker:
    """Labels groups of items with one pipeline; not shared between threads."""

    def __init__(self, pipeline: Pipeline, request: Request, folder: OutputFolder) -> None:
        """Use a pipeline with a detector that no other thread uses."""
        self._pipeline, self._request, self._folder = pipeline, request, folder
        self.seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)

    def label(self, group: Sequence[Item]) -> list[ImageRecord]:
        """Label a group; an image that cannot be read becomes a record with a failure. Raises: LabelingError."""
        prepared = [self._prepare(item) for item in group]
        with self._timed("classify"):
            probabilities = self._pipeline.classify(_joined([one.photo.crops for one in prepared if one.photo]))
        analyses: list[Analysis | None] = []
        start = 0
        for one in prepared:
            count = len(one.photo.faces) if one.photo else 0
            rows = probabilities[start : start + count]
            analyses.append(self._pipeline.label(one.photo, rows) if one.photo else None)
            start += count
        with self._timed("write"):
            self._write_products(prepared, analyses)
            return [self._record(one, analysis) for one, analysis in zip(prepared, analyses, strict=True)]

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
                sha256 = sha256 or (hashlib.sha256(payload).hexdigest() if payload is not None else "")
            return self._faces(item, sha256, payload)
        except Exception as error:  # noqa: BLE001  # one poisoned image must not end a run over a million others
            return _Prepared(_emptied(item), sha256, failure=failure_of(error, item.name))

    def _payload(self, item: Item) -> bytes | None:
        if item.pixels is not None:
            return None
        return read_file(item, self._pipeline.settings.max_bytes) if item.payload is None else item.payload

    def _faces(self, item: Item, sha256: str, payload: bytes | None) -> _Prepared:
        draws = bool(item.products & ANNOTATED)
        if payload is not None:
            photo = self._pipeline.prepare(payload, keep_image=draws)
        else:
            assert item.pixels is not None  # noqa: S101  # an item has bytes, pixels or a failure
            photo = self._pipeline.prepare_pixels(item.pixels, keep_image=draws)
        for stage, milliseconds in photo.timings_ms.items():
            self.seconds[stage] += milliseconds / 1000
        view = None
        if photo.image is not None:
            with self._timed("write"):
                view = reduced(photo.image, self._request.annotated_px)
        return _Prepared(_emptied(item), sha256, replace(photo, image=None), view)

    def _record(self, one: _Prepared, analysis: Analysis | None) -> ImageRecord:
        if analysis is None:
            failure = one.failure or Failure("failed", "no pixels")
            return ImageRecord(one.item, failure.status, sha256=one.sha256, failure=failure)
        faces = tuple(_record(face, one.item.products) for face in analysis.faces)
        status: Status = "ok" if faces else "no_face"
        return ImageRecord(
            one.item, status, analysis.width, analysis.height, one.sha256, faces, products=one.item.products
        )

    def _drawn(self, analysis: Analysis) -> Analysis:
        """The analysis with the faces that are in the outputs."""
        request = self._request
        faces = (face for face in analysis.faces if face.short_side_px >= request.min_face_px)
        return replace(analysis, faces=tuple(face for face in faces if face.confidence >= request.min_confidence))

    def _write_products(self, prepared: Sequence[_Prepared], analyses: Sequence[Analysis | None]) -> None:
        """Write annotated copies and crops, once all names of the group are recorded."""
        copies: dict[str, tuple[Array, Analysis]] = {}
        crops: dict[str, Array] = {}
        for one, analysis in zip(prepared, analyses, strict=True):
            if analysis is None:
                continue
            if one.view is not None:
                copies[annotated_path(one.item.name, one.item.frame)] = one.view, self._drawn(analysis)
            if one.item.products & CROPS:
                for number, face in enumerate(analysis.faces):
                    crops[crop_path(one.item.name, one.item.frame, number)] = face.crop
        with disk_errors(self._folder.path):
            if copies:
                self._folder.claim(ANNOTATED_DIR, copies)
            if crops:
                self._folder.claim(CROPS_DIR, crops)
            for name, (view, analysis) in copies.items():
                self._folder.write_image(name, encode_jpeg(annotate(view, analysis)))
            for name, crop in crops.items():
                self._folder.write_image(name, encode_png(crop))


def _record(face: LabeledFace, products: int) -> LabeledFace:
    """The face with what the journal stores of its crop, without the crop."""
    thumb = thumbnail(face.crop) if products & THUMBS else b""
    return replace(face, sharpness=sharpness(face.crop), thumb=thumb, crop=face.crop[:0])


def _emptied(item: Item) -> Item:
    """The item without its bytes and pixels, which are not needed after decoding."""
    return replace(item, payload=None, pixels=None)


def _joined(parts: list[Array]) -> Array:
    crops = [part for part in parts if len(part)]
    return np.concatenate(crops) if crops else np.empty((0, CROP_PX, CROP_PX, 3), np.uint8)


def sharpness(crop: Array) -> float:
    """Variance of the Laplacian of a crop's luminance, gray levels squared; below about 20 a face is blurred.

    Args:
        crop: (112, 112, 3) uint8, RGB.
    Source: Pech-Pacheco et al. 2000.
    """
    return float(cv2.Laplacian(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), cv2.CV_32F).var())
