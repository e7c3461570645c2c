"""How is a record of the pipeline said in JSON? Plain translation, no decisions but the confidence threshold's."""

import base64
import io
from dataclasses import replace
from typing import Any, Final

import numpy as np
from PIL import Image

from app.classify import Classifier
from app.draw import annotate, reduced
from app.explain import explanation
from app.pipeline import Analysis, LabelledFace
from app.schemas import Box, Explanation, FaceResult, Landmarks, Picture, Point, RankedLabel, TrackedFaceResult
from app.tracking import TrackedFace
from data.contract import LABELS, Array

UNCERTAIN: Final = "uncertain"
DRAWN_PX: Final = 2048


def face_result(face: LabelledFace, *, threshold: float, top_k: int, told: Explanation | None = None) -> FaceResult:
    """One face of an image; its label is `uncertain` where the confidence is below `threshold`."""
    return FaceResult(**_fields(face, uncertain=face.confidence < threshold, top_k=top_k), explanation=told)


def explanations(classifier: Classifier, analysis: Analysis) -> list[Explanation]:
    """What the model looked at, for every face, in order."""
    if not analysis.faces:
        return []
    maps = classifier.explain(np.stack([face.crop for face in analysis.faces]))
    return [explanation(face.crop, relevance) for face, relevance in zip(analysis.faces, maps, strict=True)]


def tracked_result(tracked: TrackedFace) -> TrackedFaceResult:
    """One face of a stream's frame."""
    return TrackedFaceResult(track=tracked.track, **_fields(tracked.face, uncertain=tracked.face.uncertain, top_k=1))


def _fields(face: LabelledFace, *, uncertain: bool, top_k: int) -> dict[str, Any]:
    probabilities = {label: round(float(value), 6) for label, value in zip(LABELS, face.probabilities, strict=True)}
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    x, y, width, height = (round(float(value), 2) for value in face.face.box_px)
    return {
        "box": Box(x=x, y=y, width=width, height=height),
        "landmarks": _landmarks(face.face.landmarks_px),
        "detection_score": round(min(max(float(face.face.score), 0.0), 1.0), 4),
        "roll_degrees": round(face.roll_degrees, 2),
        "label": UNCERTAIN if uncertain else face.label,
        "confidence": round(face.confidence, 6),
        "probabilities": probabilities,
        "top": [RankedLabel(label=label, probability=value) for label, value in ranked[:top_k]],
    }


def _landmarks(points_px: Array) -> Landmarks:
    names = ("left_eye", "right_eye", "nose", "mouth_left", "mouth_right")
    points = (Point(x=round(float(x), 2), y=round(float(y), 2)) for x, y in points_px)
    return Landmarks(**dict(zip(names, points, strict=True)))


def drawn(image: Array, analysis: Analysis, threshold: float) -> Picture:
    """The picture (H, W, 3) uint8 RGB with its faces drawn in, as JPEG, at most 2048 pixels on its long side."""
    faces = tuple(replace(face, uncertain=face.confidence < threshold) for face in analysis.faces)
    canvas = annotate(reduced(image, DRAWN_PX), replace(analysis, faces=faces))
    buffer = io.BytesIO()
    Image.fromarray(canvas).save(buffer, "JPEG", quality=90)
    return Picture(media_type="image/jpeg", base64=base64.b64encode(buffer.getvalue()).decode("ascii"))


def stage_timings(analysis: Analysis) -> dict[str, float]:
    """Milliseconds per stage, to the hundredth."""
    return {stage: round(value, 2) for stage, value in analysis.timings_ms.items()}
