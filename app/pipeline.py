"""What does a photo's bytes become? decode -> detect -> align -> classify, for one image.

The stages can be called one by one, so that the service and the labelling engine can batch between them.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.classify import Classifier, create_classifier
from app.decode import Decoded, decode, decode_reduced
from app.detect import Detector, Face, create_detector
from app.detect.base import scaled
from app.settings import Settings
from data.contract import CROP_PX, LABELS, Array, align, roll_degrees

# Of a reduced photo a crop still has two pixels for each of its own.
_ENOUGH_PX: Final = 2 * CROP_PX


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


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """A photo after all stages but the last: what is needed to classify its faces and to answer.

    width, height: of the upright photo, pixels; faces: in its pixels, largest first; crops: (N, 112, 112, 3) uint8 RGB;
    image: (H, W, 3) uint8 RGB in the photo's size, where it was asked for; timings_ms: decode, detect, align.
    """

    width: int
    height: int
    faces: list[Face]
    crops: Array
    image: Array | None
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
        return self._answer(self.see(payload))

    def analyse_pixels(self, image: Array) -> Analysis:
        """Label every face of (H, W, 3) uint8 RGB pixels."""
        whole = Decoded(image, width=image.shape[1], height=image.shape[0])
        return self._answer(self._seen(whole, b"", {"decode": 0.0}, keep_image=False))

    def _answer(self, seen: Seen) -> Analysis:
        with timed(seen.timings_ms, "classify"):
            probabilities = self.classify(seen.crops)
        return self.answer(seen, probabilities)

    def see(self, payload: bytes, *, keep_image: bool = False) -> Seen:
        """Decode, detect and align; a large JPEG is decoded reduced where its faces stay large enough.

        Raises: PayloadTooLarge, DecodeError and its kinds.
        """
        timings: dict[str, float] = {}
        with timed(timings, "decode"):
            if self.settings.reduced_decode and not keep_image:
                decoded = decode_reduced(payload, self.settings)
            else:
                image = self.decode(payload)
                decoded = Decoded(image, width=image.shape[1], height=image.shape[0])
        return self._seen(decoded, payload, timings, keep_image=keep_image)

    def _seen(self, decoded: Decoded, payload: bytes, timings: dict[str, float], *, keep_image: bool) -> Seen:
        image, scale = decoded.image, decoded.scale
        with timed(timings, "detect"):
            faces = self._kept([scaled(face, scale, scale) for face in self.detector.detect(image)])
        if scale > 1 and any(min(face.box_px[2:]) < _ENOUGH_PX * scale for face in faces):
            with timed(timings, "decode"):
                image, scale = self.decode(payload), 1.0
        with timed(timings, "align"):
            crops = self.crop(image, [scaled(face, 1 / scale, 1 / scale) for face in faces])
        return Seen(decoded.width, decoded.height, faces, crops, image if keep_image else None, timings)

    def decode(self, payload: bytes) -> Array:
        """Bytes to (H, W, 3) uint8 RGB, upright. Raises: PayloadTooLarge, DecodeError and its kinds."""
        return decode(payload, self.settings)

    def detect(self, image: Array) -> list[Face]:
        """Faces of at least `min_face_px`, largest first, at most `max_faces`."""
        return self._kept(self.detector.detect(image))

    def _kept(self, found: list[Face]) -> list[Face]:
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
        seen = Seen(image.shape[1], image.shape[0], faces, crops, image, timings_ms)
        return self.answer(seen, probabilities)

    def answer(self, seen: Seen, probabilities: Array) -> Analysis:
        """Join a photo that was seen with the probabilities (N, 7) of its crops into its record."""
        parts = zip(seen.faces, seen.crops, probabilities, strict=True)
        return Analysis(
            width=seen.width,
            height=seen.height,
            faces=tuple(self._labelled(face, crop, row) for face, crop, row in parts),
            detector=self.detector.name,
            model=self.classifier.manifest.name,
            provider=self.classifier.provider,
            timings_ms=seen.timings_ms,
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
    timings_ms[stage] = timings_ms.get(stage, 0.0) + (time.perf_counter() - start) * 1000.0


def build_pipeline(settings: Settings) -> Pipeline:
    """Open detector and model as the settings say. Raises: StartupError and its kinds, ArtefactError."""
    return Pipeline(create_detector(settings), create_classifier(settings), settings)
