"""Labeling of one batch of images, on one thread: read, decode, detect, align, classify all faces at once, write.

Batches are small and always the same, so that memory is bounded and results do not depend on where an earlier run was
stopped.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.pipeline import Analysis, LabeledFace, Pipeline, PreparedPhoto, timed
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
from mien.app.labeling.options import LabelOptions
from mien.app.labeling.raw import decode_raw, is_raw
from mien.app.labeling.reading import failure_of, read_file
from mien.app.labeling.records import Failure, Input, Result, Status
from mien.data.atomic import write_atomic
from mien.data.contract import CROP_PX, Array

STAGES: Final = ("read", "decode", "detect", "align", "classify", "write")


def label_batch(
    pipeline: Pipeline,
    batch: Sequence[Input],
    options: LabelOptions,
    out: Path,
    earlier: Callable[[Input, str], Result | None] = lambda *_: None,
) -> tuple[list[Result], dict[str, float]]:
    """Label a batch; an image that cannot be read becomes a result with a reason.

    earlier: the result of a moved input with the same hash.
    Returns: results, and milliseconds per stage. Raises: LabelingError.
    """
    timings_ms = dict.fromkeys(STAGES, 0.0)
    prepared = [_prepare(pipeline, item, options, earlier, timings_ms) for item in batch]
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
            _write_images(item, photo.image, analysis, options, out)
            faces = tuple(_stored(face, number, item.images) for number, face in enumerate(analysis.faces))
            status: Status = "ok" if faces else "no_face"
            results.append(Result(bare, status, None, None, sha256, analysis.width, analysis.height, faces))
    return results, timings_ms


def _prepare(
    pipeline: Pipeline,
    item: Input,
    options: LabelOptions,
    earlier: Callable[[Input, str], Result | None],
    timings_ms: dict[str, float],
) -> tuple[str | None, PreparedPhoto | Result | Failure]:
    """SHA-256 of an image, and its faces; the image is kept at the size of its annotated copy."""
    sha256 = item.sha256 or None
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
                photo = replace(photo, image=reduced(photo.image, options.annotated_px))
        return sha256, photo
    except Exception as error:  # noqa: BLE001  # one poisoned image must not end a run over a million others
        return sha256, failure_of(error, item.name, payload)


def _write_images(item: Input, view: Array | None, analysis: Analysis, options: LabelOptions, out: Path) -> None:
    """Write the annotated copy and the crops of an image.

    They are not synced to the disk individually, because this would take longer than labeling.
    """
    if view is not None:
        shown = tuple(
            face
            for face in analysis.faces
            if face.short_side_px >= options.min_face_px and face.confidence >= options.min_confidence
        )
        copy = encode_jpeg(annotate(view, replace(analysis, faces=shown)))
        write_atomic(out / annotated_path(item.name, item.frame), copy, staging=parts_dir(out), durable=False)
    if item.images & CROPS:
        for number, face in enumerate(analysis.faces):
            path = out / crop_path(item.name, item.frame, number)
            write_atomic(path, encode_png(face.crop), staging=parts_dir(out), durable=False)
    if item.on_disk & CROPS:
        remove_crops(out, item.name, item.frame, first=len(analysis.faces))


def _stored(face: LabeledFace, number: int, images: int) -> LabeledFace:
    """The face with what the journal stores of its crop, without the crop."""
    thumb = thumbnail(face.crop) if images & THUMBS else b""
    return replace(face, number=number, sharpness=sharpness(face.crop), thumb=thumb, crop=face.crop[:0])


def sharpness(crop: Array) -> float:
    """Variance of the Laplacian of a crop's luminance, gray levels squared; below about 20 a face is blurred.

    Args:
        crop: (112, 112, 3) uint8, RGB.
    Source: Pech-Pacheco et al. 2000.
    """
    return float(cv2.Laplacian(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), cv2.CV_32F).var())
