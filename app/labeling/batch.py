"""Labeling of one batch of images: read, decode, detect, align, classify all faces at once, write copies and crops."""

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import cv2
import numpy as np

from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.pipeline import Analysis, LabeledFace, Pipeline, PreparedPhoto, timed
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
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.raw import decode_raw, is_raw
from mien.app.labeling.reading import failure_of, read_file
from mien.app.labeling.records import Failure, Input, Result, Status
from mien.data.atomic import write_atomic
from mien.data.contract import CROP_PX, Array

STAGES: Final = ("read", "decode", "detect", "align", "classify", "write")
Earlier = Callable[[Input, str], Result | None]  # the earlier result of a moved input with this hash


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Results of a batch, and milliseconds per stage."""

    results: list[Result]
    timings_ms: dict[str, float]


class BatchLabeler:
    """Labels batches with one pipeline; thread-safe."""

    def __init__(self, pipeline: Pipeline, options: LabelOptions) -> None:
        self.pipeline, self.options = pipeline, options

    def label(self, batch: Sequence[Input], earlier: Earlier) -> BatchResult:
        """Label a batch; an image on which a stage fails becomes a result with a reason.

        Raises: LabelingError, if images cannot be written, or if no image of the batch can be classified.
        """
        timings_ms = dict.fromkeys(STAGES, 0.0)
        prepared = [self._prepare(item, earlier, timings_ms) for item in batch]
        with timed(timings_ms, "classify"):
            photos = [photo for _, photo in prepared if isinstance(photo, PreparedPhoto)]
            analyses = iter(self._classify(photos))
        results = []
        with timed(timings_ms, "write"), disk_errors(self.options.out):
            for item, (sha256, photo) in zip(batch, prepared, strict=True):
                bare = replace(item, payload=None, pixels=None)
                outcome = next(analyses) if isinstance(photo, PreparedPhoto) else photo
                if isinstance(outcome, Analysis):
                    outcome = self._written(item, outcome)
                if isinstance(outcome, Exception):
                    outcome = failure_of(outcome, item.name)
                if isinstance(outcome, Failure):
                    results.append(Result(bare, outcome.status, outcome.reason, outcome.message, sha256))
                    continue
                if outcome.reused:
                    copy_images(self.options.out, outcome, item)
                results.append(replace(outcome, input=bare, sha256=sha256))
        return BatchResult(results, timings_ms)

    def _prepare(
        self, item: Input, earlier: Earlier, timings_ms: dict[str, float]
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
            if (result := earlier(item, sha256 or "")) is not None:
                return sha256, replace(result, reused=True)
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

    def _classify(self, photos: Sequence[PreparedPhoto]) -> list[Analysis | Exception]:
        """Classify all faces at once, or photo by photo if this fails, as when memory is short.

        Raises: LabelingError, if it fails for every one of several photos.
        """
        crops = [np.empty((0, CROP_PX, CROP_PX, 3), np.uint8), *(photo.crops for photo in photos)]
        try:
            probabilities = self.pipeline.classify(np.concatenate(crops))
        except Exception as error:  # as in `_prepare`
            if len(photos) == 1:
                return [error]
            analyses = [self._classify([photo])[0] for photo in photos]
            failed = sum(isinstance(analysis, Exception) for analysis in analyses)
            if 1 < failed == sum(len(photo.faces) > 0 for photo in photos):
                raise LabelingError(f"the model cannot run: {error}. Rerun the same command to resume.") from error
            return analyses
        ends = itertools.accumulate(len(photo.faces) for photo in photos)
        parts = np.split(probabilities, list(ends)[:-1])
        return [self.pipeline.label(photo, part) for photo, part in zip(photos, parts, strict=False)]

    def _written(self, item: Input, analysis: Analysis) -> Result | Exception:
        """Write the images of an input; its result, or the error of a stage that failed. Raises: OSError."""
        try:
            self._write_images(item, analysis)
            faces = tuple(_stored(face, number, item) for number, face in enumerate(analysis.faces))
        except OSError:  # of the disk, which ends the run
            raise
        except Exception as error:  # noqa: BLE001  # as in `_prepare`: an image that is too large for a JPEG
            return error
        status: Status = "ok" if faces else "no_face"
        return Result(item, status, width=analysis.width, height=analysis.height, faces=faces)

    def _write_images(self, item: Input, analysis: Analysis) -> None:
        """Write the annotated copy and the crops of an image.

        They are not synced to the disk individually, because this would take longer than labeling.
        """
        out = self.options.out
        if analysis.image is not None:
            drawn = replace(analysis, faces=tuple(filter(self._shows, analysis.faces)))
            copy = encode_jpeg(annotate(analysis.image, drawn))
            write_atomic(out / annotated_path(item.name, item.frame), copy, staging=parts_dir(out), durable=False)
        if item.images & CROPS:
            for number, face in enumerate(analysis.faces):
                path = out / crop_path(item.name, item.frame, number)
                write_atomic(path, encode_png(face.crop), staging=parts_dir(out), durable=False)
        if item.on_disk & CROPS:
            remove_crops(out, item.name, item.frame, first=len(analysis.faces))

    def _shows(self, face: LabeledFace) -> bool:
        options = self.options
        return face.confidence >= options.min_confidence and face.short_side_px >= options.min_face_px


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
