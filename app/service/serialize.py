"""Conversion of the pipeline's results to JSON models."""

import base64
import io
from pathlib import Path
from typing import Final, Literal

import numpy as np
from PIL import Image

from mien.app.inference.attention_overlay import overlay
from mien.app.inference.classifier import Classifier
from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.records import Face, Photo
from mien.app.service import schemas
from mien.app.service.problems import problem_body, problem_for
from mien.data.contract import Array

MediaType = Literal["image/png", "image/jpeg"]
DRAWN_PX: Final = 2048


def image_result(
    index: int, name: str | None, photo: Photo, classifier: Classifier, options: schemas.LabelOptions
) -> schemas.ImageResult:
    """One image with its faces, and with the images that the options ask for."""
    maps = np.empty(0)
    if options.explain and photo.faces:
        maps = classifier.explain(np.stack([face.crop for face in photo.faces]))
    faces = []
    for number, face in enumerate(photo.faces):
        explanation = None
        if options.explain:
            relevance = [[round(float(value), 6) for value in row] for row in maps[number]]
            explanation = schemas.Explanation(map=relevance, overlay=_png(overlay(face.crop, maps[number])))
        crop = _png(face.crop) if options.crops else None
        faces.append(face_result(face, top_k=options.top_k, explanation=explanation, crop=crop))
    annotated = None
    if photo.pixels is not None:
        drawn = annotate(reduced(photo.pixels, DRAWN_PX), photo)
        annotated = _encoded(drawn, "JPEG", "image/jpeg", quality=90)
    return schemas.ImageResult(
        index=index,
        name=name,
        width=photo.width,
        height=photo.height,
        faces=faces,
        timings_ms=stage_timings(photo),
        annotated=annotated,
    )


def failed_image(index: int, name: str | None, error: Exception) -> schemas.ImageResult:
    """One image that could not be read."""
    problem = problem_details(error)
    return schemas.ImageResult(index=index, name=name, width=None, height=None, faces=[], timings_ms={}, error=problem)


def face_result(
    face: Face,
    *,
    top_k: int = 1,
    explanation: schemas.Explanation | None = None,
    crop: schemas.ImageData | None = None,
) -> schemas.FaceResult:
    """One face of an image, or of a stream's frame."""
    fields = face.to_dict()
    ranked = sorted(fields["probabilities"].items(), key=lambda item: -item[1])
    top = [schemas.RankedLabel(label=label, probability=value) for label, value in ranked[:top_k]]
    return schemas.FaceResult(**fields, top=top, explanation=explanation, crop=crop)


def problem_details(error: Exception) -> schemas.ProblemDetails:
    """Problem details for the error of one image or frame."""
    return schemas.ProblemDetails.model_validate(problem_body(problem_for(error), str(error)))


def stage_timings(photo: Photo) -> dict[str, float]:
    """Milliseconds per stage, rounded to 0.01."""
    return {stage: round(value, 2) for stage, value in photo.timings_ms.items()}


def png_file(path: Path) -> schemas.ImageData | None:
    """A PNG file; None if it was deleted."""
    try:
        return _in_base64(path.read_bytes(), "image/png")
    except FileNotFoundError:
        return None


def _png(image: Array) -> schemas.ImageData:
    return _encoded(image, "PNG", "image/png")


def _encoded(image: Array, form: str, media_type: MediaType, **options: int) -> schemas.ImageData:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, form, **options)
    return _in_base64(buffer.getvalue(), media_type)


def _in_base64(payload: bytes, media_type: MediaType) -> schemas.ImageData:
    return schemas.ImageData(media_type=media_type, base64=base64.b64encode(payload).decode("ascii"))
