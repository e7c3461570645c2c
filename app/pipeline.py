"""What does a photo's bytes become? decode -> detect -> align -> classify, for one image.

The stages can be called one by one, so that the service and the labelling engine can batch between them.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from app.classify import Classifier, create_classifier
from app.decode import decode
from app.detect import Detector, Face, create_detector
from app.settings import Settings
from data.contract import CROP_PX, LABELS, Array, align, roll_degrees


@dataclass(frozen=True, slots=True, eq=False)
class LabelledFace:
    """A face and what its expression is read as.

    probabilities: (7,) float32 in the order of `LABELS`, calibrated.
    label: the most probable of them; confidence: its probability.
    uncertain: the confidence is below the artefact's abstain threshold.
    roll_degrees: in-plane rotation of the face, clockwise positive.
    crop: (112, 112, 3) uint8 RGB, what the model saw.
    """

    face: Face
    probabilities: Array
    label: str
    confidence: float
    uncertain: bool
    roll_degrees: float
    crop: Array


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """All faces of one picture, largest first; width and height in pixels, upright; time per stage in milliseconds."""

    width: int
    height: int
    faces: tuple[LabelledFace, ...]
    detector: str
    model: str
    provider: str
    timings_ms: dict[str, float]


class Pipeline:
    """The stages of serving over one detector and one classifier; safe to call from several threads at once."""

    def __init__(self, detector: Detector, classifier: Classifier, settings: Settings) -> None:
        """Join parts that are already open; `build_pipeline` opens them."""
        self.detector = detector
        self.classifier = classifier
        self.settings = settings

    def analyse(self, payload: bytes) -> Analysis:
        """Label every face of an encoded picture. Raises: PayloadTooLarge, DecodeError and its kinds."""
        timings: dict[str, float] = {}
        with timed(timings, "decode"):
            image = self.decode(payload)
        return self._analyse(image, timings)

    def analyse_pixels(self, image: Array) -> Analysis:
        """Label every face of (H, W, 3) uint8 RGB pixels."""
        return self._analyse(image, {"decode": 0.0})

    def _analyse(self, image: Array, timings: dict[str, float]) -> Analysis:
        with timed(timings, "detect"):
            faces = self.detect(image)
        with timed(timings, "align"):
            crops = self.crop(image, faces)
        with timed(timings, "classify"):
            probabilities = self.classify(crops)
        return self.assemble(image, faces, crops, probabilities, timings)

    def decode(self, payload: bytes) -> Array:
        """Bytes to (H, W, 3) uint8 RGB, upright. Raises: PayloadTooLarge, DecodeError and its kinds."""
        return decode(payload, self.settings)

    def detect(self, image: Array) -> list[Face]:
        """Faces of at least `min_face_px`, largest first, at most `max_faces`."""
        found = self.detector.detect(image)
        large = [face for face in found if min(face.box_px[2:]) >= self.settings.min_face_px]
        return large[: self.settings.max_faces]

    def crop(self, image: Array, faces: list[Face]) -> Array:
        """One aligned crop per face, (N, 112, 112, 3) uint8 RGB."""
        crops = [align(image, face.landmarks_px) for face in faces]
        return np.stack(crops) if crops else np.empty((0, CROP_PX, CROP_PX, 3), np.uint8)

    def classify(self, crops: Array) -> Array:
        """Calibrated probabilities (N, 7) float32 of (N, 112, 112, 3) uint8 crops."""
        return self.classifier.classify(crops)

    def assemble(
        self, image: Array, faces: list[Face], crops: Array, probabilities: Array, timings_ms: dict[str, float]
    ) -> Analysis:
        """Join what the stages gave for one image into its record."""
        labelled = tuple(self._labelled(*parts) for parts in zip(faces, crops, probabilities, strict=True))
        return Analysis(
            width=image.shape[1],
            height=image.shape[0],
            faces=labelled,
            detector=self.detector.name,
            model=self.classifier.manifest.name,
            provider=self.classifier.provider,
            timings_ms=timings_ms,
        )

    def _labelled(self, face: Face, crop: Array, probabilities: Array) -> LabelledFace:
        best = int(probabilities.argmax())
        confidence = float(probabilities[best])
        return LabelledFace(
            face=face,
            probabilities=probabilities,
            label=LABELS[best],
            confidence=confidence,
            uncertain=confidence < self.classifier.manifest.abstain_threshold,
            roll_degrees=roll_degrees(face.landmarks_px),
            crop=crop,
        )


@contextmanager
def timed(timings_ms: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time of a block to `timings_ms`, in milliseconds."""
    start = time.perf_counter()
    yield
    timings_ms[stage] = (time.perf_counter() - start) * 1000.0


def build_pipeline(settings: Settings) -> Pipeline:
    """Open detector and model as the settings say. Raises: StartupError and its kinds, ArtefactError."""
    return Pipeline(create_detector(settings), create_classifier(settings), settings)
