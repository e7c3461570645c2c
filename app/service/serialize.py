"""Conversion of pipeline records to JSON models, including the confidence threshold."""

import base64
import io
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from PIL import Image

from mien.app.inference.attention_overlay import overlay
from mien.app.inference.classifier import Classifier
from mien.app.inference.drawing import annotate, reduced
from mien.app.inference.pipeline import Analysis, LabeledFace
from mien.app.service.problems import problem_body, problem_for
from mien.app.service.schemas import (
    Box,
    Explanation,
    FaceResult,
    ImageData,
    Label,
    Landmarks,
    Point,
    Probabilities,
    ProblemDetails,
    RankedLabel,
    TrackedFaceResult,
)
from mien.data.contract import LANDMARKS, Array, by_label

DRAWN_PX: Final = 2048


def face_result(face: LabeledFace, *, threshold: float, top_k: int) -> FaceResult:
    """One face of an image; it is `uncertain` if the confidence is below `threshold`."""
    return FaceResult(**_fields(face, uncertain=face.confidence < threshold, top_k=top_k))


def explanations(classifier: Classifier, analysis: Analysis) -> list[Explanation]:
    """Attention maps of all faces, in order."""
    if not analysis.faces:
        return []
    maps = classifier.explain(np.stack([face.crop for face in analysis.faces]))
    return [
        Explanation(
            map=[[round(float(value), 6) for value in row] for row in relevance],
            overlay=_png(overlay(face.crop, relevance)),
        )
        for face, relevance in zip(analysis.faces, maps, strict=True)
    ]


def crops(analysis: Analysis) -> list[ImageData]:
    """The aligned faces, in order, (112, 112, 3) each."""
    return [_png(face.crop) for face in analysis.faces]


def tracked_result(face: LabeledFace) -> TrackedFaceResult:
    """One face of a stream's frame."""
    return TrackedFaceResult(track=face.track, **_fields(face, uncertain=face.uncertain, top_k=1))


def _fields(face: LabeledFace, *, uncertain: bool, top_k: int) -> dict[str, Any]:
    probabilities = {label: round(value, 6) for label, value in by_label(face.probabilities).items()}
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    x, y, width, height = (round(float(value), 2) for value in face.box_px)
    return {
        "box": Box(x=x, y=y, width=width, height=height),
        "landmarks": _landmarks(face.landmarks_px),
        "detection_score": round(min(max(float(face.score), 0.0), 1.0), 4),
        "roll_degrees": round(face.roll_degrees, 2),
        "label": Label(face.label),
        "confidence": round(face.confidence, 6),
        "uncertain": uncertain,
        "probabilities": Probabilities(**probabilities),
        "top": [RankedLabel(label=Label(label), probability=value) for label, value in ranked[:top_k]],
    }


def _landmarks(points_px: Array) -> Landmarks:
    points = (Point(x=round(float(x), 2), y=round(float(y), 2)) for x, y in points_px)
    return Landmarks(**dict(zip(LANDMARKS, points, strict=True)))


def drawn(image: Array, analysis: Analysis, threshold: float) -> ImageData:
    """Draw the faces on an image (H, W, 3) uint8 RGB; returns a JPEG with a long side of at most 2048 pixels."""
    faces = tuple(replace(face, uncertain=face.confidence < threshold) for face in analysis.faces)
    canvas = annotate(reduced(image, DRAWN_PX), replace(analysis, faces=faces))
    return _encoded(canvas, "JPEG", "image/jpeg", quality=90)


def problem_details(error: Exception) -> ProblemDetails:
    """Problem details for the error of one image or frame."""
    return ProblemDetails.model_validate(problem_body(problem_for(error), str(error)))


def stage_timings(analysis: Analysis) -> dict[str, float]:
    """Milliseconds per stage, rounded to 0.01."""
    return {stage: round(value, 2) for stage, value in analysis.timings_ms.items()}


def _png(image: Array) -> ImageData:
    return _encoded(image, "PNG", "image/png")


def _encoded(image: Array, form: str, media_type: Literal["image/png", "image/jpeg"], **options: int) -> ImageData:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, form, **options)
    return ImageData(media_type=media_type, base64=base64.b64encode(buffer.getvalue()).decode("ascii"))
