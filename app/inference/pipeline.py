"""The path of one photo: decode, detect, align, classify.

`Pipeline.prepare` and `Pipeline.label` are separate so that callers can batch the faces of several photos between them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from opentelemetry import trace

from mien.app.errors import InvalidRequest
from mien.app.inference.classifier import Classifier
from mien.app.inference.decode import Decoded, decode
from mien.app.inference.detect import Box, Detector, Face, create_detector
from mien.app.inference.detect.base import scaled
from mien.app.settings import Settings
from mien.data.contract import CROP_PX, Array, align, roll_degrees
from mien.data.contract.align import TEMPLATE_PX
from mien.data.contract.decode import Probe
from mien.data.quality import AMBIGUOUS_BELOW, measure
from mien.models.manifest import artifact_dir

# Minimum side of a face whose crop is cut from a reduced photo, in pixels of that photo: two per pixel of the crop.
_MIN_REDUCED_FACE_PX: Final = 2 * CROP_PX


@dataclass(frozen=True, slots=True, eq=False)
class LabeledFace(Face):
    """A detected face with its predicted expression.

    Attributes:
        probabilities: (7,) or (8,) float32 in the order of the model's labels, calibrated.
        label: the most probable of them; confidence: its probability.
        uncertain: whether the confidence is below the threshold.
        flaws: reasons for doubt that pixels and landmarks give; see `reasons`.
        roll_degrees: in-plane rotation of the face, clockwise positive.
        crop: (112, 112, 3) uint8 RGB, the model's input; empty if it was not kept.
        track: number that the face keeps across the frames of a video.
        number, sharpness, thumb: of labeling: from 0 within the image, largest first; of the crop; a small JPEG of it.
    """

    probabilities: Array
    label: str
    confidence: float
    uncertain: bool
    roll_degrees: float
    flaws: tuple[str, ...] = ()
    crop: Array = field(default_factory=partial(np.empty, (0, 0, 3), np.uint8))
    track: int = 0
    number: int = 0
    sharpness: float = 0.0
    thumb: bytes = b""

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the label may be wrong: some of `mien.data.quality.REASONS`; empty if none applies."""
        *_, second, first = sorted(self.probabilities.tolist())
        return (*self.flaws, "ambiguous") if first < AMBIGUOUS_BELOW * second else self.flaws


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """All faces of one image, largest first.

    Attributes:
        width, height: size of the upright photo, pixels.
        timings_ms: decode, detect, align, classify.
        image: (H, W, 3) uint8 RGB, on request; smaller than the photo if it was decoded at reduced size.
    """

    width: int
    height: int
    faces: tuple[LabeledFace, ...]
    timings_ms: dict[str, float]
    image: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PreparedPhoto:
    """A photo whose faces are detected and aligned but not classified yet.

    Attributes:
        width, height: size of the upright photo, pixels.
        faces: in pixels of the photo, largest first.
        crops: (N, 112, 112, 3) uint8 RGB.
        image: (H, W, 3) uint8 RGB, on request; smaller than the photo if it was decoded at reduced size.
        timings_ms: decode, detect, align.
    """

    width: int
    height: int
    faces: list[Face]
    crops: Array
    image: Array | None
    timings_ms: dict[str, float]


class Pipeline:
    """The stages of serving over one detector and one classifier; thread-safe."""

    def __init__(self, detector: Detector, classifier: Classifier, settings: Settings) -> None:
        """Combine an open detector and classifier; `build_pipeline` opens them."""
        self.detector = detector
        self.classifier = classifier
        self.settings = settings

    def analyze(self, payload: bytes) -> Analysis:
        """Label every face of an encoded image. Raises: PayloadTooLarge, DecodeError and its subclasses."""
        return self._analyze(self.prepare(payload))

    def analyze_pixels(self, image: Array) -> Analysis:
        """Label every face of (H, W, 3) uint8 RGB pixels."""
        return self._analyze(self.prepare_pixels(image))

    def _analyze(self, photo: PreparedPhoto) -> Analysis:
        with timed(photo.timings_ms, "classify"):
            probabilities = self.classify(photo.crops)
        return self.label(photo, probabilities)

    def prepare(
        self,
        payload: bytes,
        *,
        min_face_px: float = 0.0,
        keep_image: bool = False,
        admit: Callable[[Probe], None] | None = None,
    ) -> PreparedPhoto:
        """Decode, detect and align; a large JPEG is decoded at reduced size if its faces stay large enough.

        Args:
            payload: the file's bytes.
            min_face_px: ignore faces whose shorter side is smaller; those below the setting are always ignored.
            keep_image: keep the pixels in the result.
            admit: see `decode`.
        Raises: PayloadTooLarge, DecodeError and its subclasses.
        """
        timings: dict[str, float] = {}
        with timed(timings, "decode"):
            decoded = decode(payload, self.settings, reduced=self.settings.reduced_decode, admit=admit)
        with timed(timings, "detect"):
            faces = self._detect(decoded, min_face_px)
        if decoded.scale > 1 and any(face.short_side_px < _MIN_REDUCED_FACE_PX * decoded.scale for face in faces):
            with timed(timings, "decode"):
                decoded = decode(payload, self.settings)
        return self._align(decoded, faces, timings, keep_image=keep_image)

    def prepare_pixels(self, image: Array, *, keep_image: bool = False) -> PreparedPhoto:
        """Like `prepare`, for (H, W, 3) uint8 RGB pixels."""
        decoded = Decoded(image, width=image.shape[1], height=image.shape[0])
        timings = {"decode": 0.0}
        with timed(timings, "detect"):
            faces = self._detect(decoded)
        return self._align(decoded, faces, timings, keep_image=keep_image)

    def prepare_crop(self, payload: bytes, *, admit: Callable[[Probe], None] | None = None) -> PreparedPhoto:
        """Decode an image that is an aligned face already, such as a crop of `mien label`; nothing is detected.

        Raises: InvalidRequest, for another size; PayloadTooLarge, DecodeError and its subclasses.
        """
        timings: dict[str, float] = {}
        with timed(timings, "decode"):
            crop = decode(payload, self.settings, admit=admit).image
        if crop.shape != (CROP_PX, CROP_PX, 3):
            size = f"{crop.shape[1]}x{crop.shape[0]}"
            raise InvalidRequest(f"aligned: image of {size} px, expected a face of {CROP_PX}x{CROP_PX} px")
        face = Face(Box(0.0, 0.0, float(CROP_PX), float(CROP_PX)), np.array(TEMPLATE_PX, np.float32), 1.0)
        return PreparedPhoto(CROP_PX, CROP_PX, [face], crop[None], crop, timings)

    def _detect(self, decoded: Decoded, min_face_px: float = 0.0) -> list[Face]:
        """Faces of at least `min_face_px`, in pixels of the photo, largest first, at most `max_faces`."""
        smallest = max(min_face_px, self.settings.min_face_px)
        faces = [scaled(face, decoded.scale, decoded.scale) for face in self.detector.detect(decoded.image)]
        return [face for face in faces if face.short_side_px >= smallest][: self.settings.max_faces]

    def _align(
        self, decoded: Decoded, faces: list[Face], timings: dict[str, float], *, keep_image: bool
    ) -> PreparedPhoto:
        share = 1 / decoded.scale
        with timed(timings, "align"):
            crops = [align(decoded.image, scaled(face, share, share).landmarks_px) for face in faces]
        stacked = np.stack(crops) if crops else np.empty((0, CROP_PX, CROP_PX, 3), np.uint8)
        image = decoded.image if keep_image else None
        return PreparedPhoto(decoded.width, decoded.height, faces, stacked, image, timings)

    def classify(self, crops: Array) -> Array:
        """Calibrated probabilities (N, 7) float32 of (N, 112, 112, 3) uint8 crops."""
        return self.classifier.classify(crops)

    def label(self, photo: PreparedPhoto, probabilities: Array, *, threshold: float | None = None) -> Analysis:
        """Combine a prepared photo with the probabilities (N, 7) of its crops.

        A face is uncertain if its confidence is below `threshold`, by default the artifact's abstain threshold.
        """
        manifest = self.classifier.manifest
        conditions = manifest.conditions
        threshold = manifest.abstain_threshold if threshold is None else threshold
        faces = []
        for face, crop, row in zip(photo.faces, photo.crops, probabilities, strict=True):
            flaws: tuple[str, ...] = ()
            if conditions is not None:
                quality = measure(crop, face.landmarks_px)
                row, flaws = conditions.softening.soften(row, quality), conditions.reasons_of(quality)  # noqa: PLW2901
            best = int(row.argmax())
            confidence = float(row[best])
            faces.append(
                LabeledFace(
                    face.box_px,
                    face.landmarks_px,
                    face.score,
                    probabilities=row,
                    label=manifest.labels[best],
                    confidence=confidence,
                    uncertain=confidence < threshold,
                    roll_degrees=roll_degrees(face.landmarks_px),
                    flaws=flaws,
                    crop=crop,
                )
            )
        return Analysis(photo.width, photo.height, tuple(faces), photo.timings_ms, photo.image)


@contextmanager
def timed(timings_ms: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time of a block to `timings_ms`, in milliseconds; the block is a span of a trace."""
    start = time.perf_counter()
    with trace.get_tracer("mien").start_as_current_span(stage):
        yield
    timings_ms[stage] = timings_ms.get(stage, 0.0) + (time.perf_counter() - start) * 1000.0


def with_absolute_paths(settings: Settings) -> Settings:
    """Settings for a process in another current folder, where the folder of the released models may be another, too."""
    paths = {"model": artifact_dir(settings.model), "models_dir": settings.models_dir}
    relative = {name: path.absolute() for name, path in paths.items() if path and not path.is_absolute()}
    return settings.model_copy(update=relative)


def build_pipeline(settings: Settings) -> Pipeline:
    """Open the detector and the model named in the settings. Raises: StartupError and its subclasses, ArtifactError."""
    return Pipeline(create_detector(settings), Classifier(settings), settings)


def build_pipelines(settings: Settings) -> dict[str, Pipeline]:
    """One pipeline per model of the settings, the default first, by the name that a request chooses it by.

    They share one detector. Unless set, inferences have one thread, because photos are processed in parallel.
    Raises: as `build_pipeline`.
    """
    settings = settings.model_copy(update={"threads": settings.threads or 1})
    first = build_pipeline(settings)
    default, *extra = settings.model_names
    pipelines = {default: first}
    for name, model in zip(extra, settings.extra_models, strict=True):
        chosen = settings.model_copy(update={"model": artifact_dir(model)})
        pipelines[name] = Pipeline(first.detector, Classifier(chosen), chosen)
    return pipelines
