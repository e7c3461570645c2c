"""The path of one photo: decode, detect or take faces that the caller gives, align, classify.

A box that a caller gives has no framing of its own: detectors, people and data sets draw it around the chin, the hair
or the whole head. Therefore the detector looks for the landmarks of each face near its box, and the crop is cut by the
box itself only where it finds none.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Self

import numpy as np

from mien.app.errors import InvalidFace, InvalidRequest
from mien.app.inference import guard
from mien.app.inference.classifier import CPU, Classifier
from mien.app.inference.detector import SECOND_PX, Detection, Detector, iou, is_tiled, problem_of
from mien.app.inference.detector_files import create_detector
from mien.app.inference.records import NO_CROPS, Box, Face, Landmarks, Photo
from mien.app.settings import InferenceSettings
from mien.data.contract import (
    CROP_PX,
    TEMPLATE_PX,
    Array,
    DegenerateLandmarks,
    ImageTooLarge,
    align,
    fit,
    roll_degrees,
    similarity,
)
from mien.data.contract.pixels import Probe, decode_incomplete, formats, open_image, probe
from mien.data.quality import VOTES_SOFTENING, measure, reasons_of, sharpness, soften, with_ambiguity

# Minimum side of a face whose crop is cut from a reduced photo, in pixels of that photo: two per pixel of the crop.
_MIN_REDUCED_FACE_PX: Final = 2 * CROP_PX
_HALVED: Final = 4  # pixels per pixel of a JPEG that is decoded at half size
# Box that detectors draw around a face, in pixels of its crop: the mean of the medians of both, over 150 faces.
_BOX_PX: Final = Box(11.0, -3.5, 89.5, 118.0)
# The face of a box is searched in the box with this share of its size added on each side.
_MARGIN: Final = 0.4
_MIN_IOU: Final = 0.3  # Given and detected boxes may be drawn by different rules.


def decode_image(
    payload: bytes | Array,
    settings: InferenceSettings,
    *,
    reduced: bool = False,
    admit: Callable[[Probe], None] | None = None,
) -> tuple[Array, Photo]:
    """Decode one image, upright, within the limits of the settings.

    Args:
        payload: the file's bytes; pixels are returned as they are.
        reduced: decode a JPEG at 1/2, 1/4 or 1/8 size if its long side stays at least `SECOND_PX`, or if it has
            up to four times as many pixels as the limit, as those of phones. Decoding a 12-megapixel photo takes ten
            times as long as detecting its faces; at half size, a third of that.
        admit: for an image of an untrusted sender: called with its format and size once `guard` has passed it; may
            wait for memory.
    Returns: pixels (H, W, 3) uint8 RGB, which may be fewer than those of the photo, and the photo with its notes.
    Raises: ImageTooLarge, UnsupportedImage, DecodeError.
    """
    if not isinstance(payload, bytes):
        return payload, Photo(payload.shape[1], payload.shape[0])
    if len(payload) > settings.max_bytes:
        raise ImageTooLarge(f"image of {len(payload):,} bytes: at most {settings.max_bytes:,} are accepted")
    scans = 0 if admit is None else guard.check_header(payload)
    max_pixels = settings.max_pixels
    accepted = formats() if admit is None else guard.uploaded_formats()
    with open_image(payload, max_pixels * (1 if admit is None else _HALVED), accepted) as image:
        # A JPEG of several scans is kept in memory at full size, even to decode it at half size.
        if reduced and scans <= 1 and image.format in ("JPEG", "MPO"):
            max_pixels *= _HALVED
        size = probe(image, payload, max_pixels=max_pixels)
        is_halved = size.width * size.height > settings.max_pixels
        if admit is not None:
            guard.check_cost(size, len(payload), scans, max_pixels=max_pixels)
            admit(Probe(size.format, size.width // 2, size.height // 2) if is_halved else size)
        reduced = reduced and (is_halved or not is_tiled(size.width, size.height, settings))
        least_px = min(SECOND_PX, max(size.width, size.height) // (2 if is_halved else 1))
        pixels, is_incomplete = decode_incomplete(
            image, payload, max_pixels=max_pixels, reduce_to_px=least_px if reduced else None
        )
    return pixels, Photo(size.width, size.height, notes=("incomplete",) if is_incomplete else ())


class Labeler:
    """The stages of serving over one detector and one classifier; thread-safe."""

    def __init__(self, detector: Detector, classifier: Classifier, settings: InferenceSettings) -> None:
        """Combine an open detector and classifier."""
        self.detector, self.classifier, self.settings = detector, classifier, settings

    @classmethod
    def open(cls, settings: InferenceSettings) -> Self:
        """Open the detector and the model named in the settings. Raises: StartupError and subclasses, ArtifactError."""
        classifier = Classifier(settings)
        device = "cpu" if classifier.provider == CPU else settings.device
        return cls(create_detector(settings, device), classifier, settings)

    def label(self, image: bytes | Array, *, threshold: float | None = None, **options: Any) -> Photo:
        """Label every face of one image. Arguments and errors: see `prepare` and `classify`."""
        (photo,) = self.classify([self.prepare(image, **options)], threshold=threshold)
        return photo

    def prepare(
        self,
        image: bytes | Array,
        *,
        whole: bool = False,
        boxes: Sequence[Box | Detection] | None = None,
        keep_pixels: bool = False,
        live: bool = False,
        admit: Callable[[Probe], None] | None = None,
    ) -> Photo:
        """Decode, detect and align; a large JPEG is decoded at reduced size if its faces stay large enough.

        Args:
            image: the bytes of a file, or (H, W, 3) uint8 RGB pixels.
            whole: the image is one face, brow to chin with a margin, of any size; nothing is detected. One of 112x112
                pixels, such as a crop of `mien label`, is taken as it is.
            boxes: the faces, instead of detected ones; the result has one face for each, in this order. Boxes are in
                pixels of the upright photo; a Detection has landmarks, too.
            keep_pixels: keep the pixels in the result.
            live: the image is a frame of a stream; see `Detector`.
            admit: for the bytes of an untrusted sender: see `decode_image`.
        Raises: DecodeError and its subclasses; InvalidFace, for boxes that cannot be used, or a whole image of a
            pixel; InvalidRequest, for options that exclude each other.
        """
        if whole and boxes is not None:
            raise InvalidRequest("whole and boxes: choose one of them")
        timings_ms: dict[str, float] = {}
        detects = not whole and boxes is None
        with timed(timings_ms, "decode"):
            pixels, photo = decode_image(image, self.settings, reduced=detects, admit=admit)
        scale = round(photo.width / pixels.shape[1])  # 1, 2, 4 or 8, those of JPEG decoders
        detections: tuple[Detection, ...]
        notes: tuple[str, ...] = ()
        with timed(timings_ms, "detect"):
            if whole:
                detections = (_whole_face(pixels),)
            elif boxes is not None:
                detections = self._at_boxes(pixels, boxes)
            else:
                detections, notes = self._detect(pixels, photo.width, photo.height, scale, live)
        smallest_px = min((face.short_side_px for face in detections), default=np.inf)
        fits = photo.width * photo.height <= self.settings.max_pixels
        if scale > 1 and smallest_px < _MIN_REDUCED_FACE_PX * scale and fits:
            with timed(timings_ms, "decode"):
                (pixels, photo), scale = decode_image(image, self.settings), 1
        with timed(timings_ms, "align"):
            if whole:
                crops = [fit(pixels)]
            else:
                crops = [align(pixels, face.scaled(1 / scale, 1 / scale).landmarks_px) for face in detections]
        return replace(
            photo,
            detections=detections,
            crops=np.stack(crops) if crops else NO_CROPS,
            pixels=pixels if keep_pixels else None,
            timings_ms=timings_ms,
            notes=(*photo.notes, *notes),
        )

    def _detect(
        self, pixels: Array, width: int, height: int, scale: int, live: bool
    ) -> tuple[tuple[Detection, ...], tuple[str, ...]]:
        """Faces of at least `min_face_px`, at most `max_faces`, in pixels of the photo, largest first; and notes."""
        faces = [face.scaled(scale, scale) for face in self.detector.detect(pixels, live=live)]
        faces = [face for face in faces if face.short_side_px >= self.settings.min_face_px]
        limit = self.settings.max_faces
        is_reduced = max(width, height) > 2 * SECOND_PX and not is_tiled(width, height, self.settings)
        notes = {"max_faces": len(faces) > limit, "reduced_search": is_reduced}
        return tuple(faces[:limit]), tuple(note for note, applies in notes.items() if applies)

    def _at_boxes(self, image: Array, boxes: Sequence[Box | Detection]) -> tuple[Detection, ...]:
        if len(boxes) > self.settings.max_faces:
            raise InvalidRequest(f"boxes: {len(boxes):,}, at most {self.settings.max_faces:,} per image (max_faces)")
        height, width = image.shape[:2]
        found = (problem_of(box, width=width, height=height) for box in boxes)
        problems = {index: text for index, text in enumerate(found) if text}
        if problems:
            texts = [f"boxes[{index}]: {text}" for index, text in problems.items()]
            raise InvalidFace("; ".join(texts[:5] + (["..."] if len(texts) > 5 else [])), tuple(problems))
        return tuple(box if isinstance(box, Detection) else _at_box(image, box, self.detector) for box in boxes)

    def classify(self, photos: Sequence[Photo], *, threshold: float | None = None) -> list[Photo]:
        """Label the faces of prepared photos, in one call of the classifier.

        Args:
            photos: their crops are classified together; `timings_ms` of each gets its part of the time by its faces.
            threshold: a face is uncertain if its confidence is below; by default the threshold of the model.
        """
        timings_ms: dict[str, float] = {}
        with timed(timings_ms, "classify"):
            rows = self.classifier.classify(np.concatenate([NO_CROPS, *(photo.crops for photo in photos)]))
        values = zip(rows, self.classifier.votes(rows), strict=True)
        labeled = []
        for photo in photos:
            part = len(photo.crops) / len(rows) if len(rows) else 1 / len(photos)
            faces = tuple(
                self._face(index, detection, crop, *next(values), threshold)
                for index, (detection, crop) in enumerate(zip(photo.detections, photo.crops, strict=True))
            )
            timings = photo.timings_ms | {"classify": timings_ms["classify"] * part}
            labeled.append(replace(photo, faces=faces, timings_ms=timings))
        return labeled

    def threshold(self, requested: float | None = None) -> float:
        """Confidence threshold of a request; that of the model if the request has none."""
        return self.classifier.manifest.confidence_threshold if requested is None else requested

    def _face(
        self, index: int, detection: Detection, crop: Array, row: Array, votes: Array, threshold: float | None
    ) -> Face:
        """One face with probabilities and expected votes (7,) of its crop, softened by its quality.

        `votes` is empty if the model does not have them.
        """
        manifest, points = self.classifier.manifest, detection.landmarks_px
        quality = measure(crop, points)
        row, votes = soften(row, quality), soften(votes, quality, VOTES_SOFTENING)
        probabilities: dict[str, float] = dict(zip(manifest.labels, row.tolist(), strict=True))
        best = int(row.argmax())
        label, confidence = manifest.labels[best], float(row[best])
        return Face(
            box=detection.box,
            landmarks=Landmarks.of(points),
            detection_score=min(max(float(detection.score), 0.0), 1.0),
            probabilities=probabilities,
            label=label,
            confidence=confidence,
            uncertain=confidence < self.threshold(threshold),
            reasons=with_ambiguity(reasons_of(quality), probabilities),
            roll_degrees=roll_degrees(points),
            agreement=float(votes[best]) if len(votes) else None,
            index=index,
            sharpness=sharpness(crop),
            crop_rgb=crop,
        )


def detection_of(landmarks_px: Array) -> Detection:
    """A face from its five landmarks, (5, 2), with the box that a detector would draw; not finite without a face."""
    points = np.asarray(landmarks_px, np.float32)
    try:
        matrix = similarity(points)
    except DegenerateLandmarks:
        return Detection(Box(*[math.nan] * 4), points, 1.0)
    scale = math.hypot(matrix[0, 0], matrix[1, 0])
    center = np.linalg.solve(matrix[:, :2], np.array(_center(_BOX_PX)) - matrix[:, 2])
    width, height = _BOX_PX.width / scale, _BOX_PX.height / scale
    return Detection(Box(float(center[0]) - width / 2, float(center[1]) - height / 2, width, height), points, 1.0)


def _whole_face(image: Array) -> Detection:
    """The face of an image that is one face, as `fit` frames it. Raises: InvalidFace."""
    height, width = image.shape[:2]
    scale = max(height, width) / CROP_PX
    margin = (CROP_PX - np.array([width, height]) / scale) / 2
    landmarks = ((np.array(TEMPLATE_PX) - margin) * scale).astype(np.float32)
    try:
        similarity(landmarks)
    except DegenerateLandmarks as error:
        raise InvalidFace(f"whole: image of {width}x{height} px, too small for a face") from error
    return Detection(Box(0.0, 0.0, float(width), float(height)), landmarks, 1.0)


def _at_box(image: Array, box: Box, detector: Detector) -> Detection:
    """The face that is detected near a box, with the box as it was given; else one that the box itself frames."""
    x, y, width, height = box
    left, top = max(0, math.floor(x - _MARGIN * width)), max(0, math.floor(y - _MARGIN * height))
    right, bottom = math.ceil(x + (1 + _MARGIN) * width), math.ceil(y + (1 + _MARGIN) * height)
    near = np.ascontiguousarray(image[top:bottom, left:right])
    moved = Box(x - left, y - top, width, height)
    nearest = max(detector.detect(near), key=lambda face: iou(face.box, moved), default=None)
    if nearest is not None and iou(nearest.box, moved) >= _MIN_IOU:
        return replace(nearest.moved(left, top), box=box)
    scale = math.sqrt(width * height / (_BOX_PX.width * _BOX_PX.height))
    landmarks = np.array(_center(box)) + (np.array(TEMPLATE_PX) - _center(_BOX_PX)) * scale
    return Detection(box, landmarks.astype(np.float32), 0.0)


def _center(box: Box) -> tuple[float, float]:
    return box.x + box.width / 2, box.y + box.height / 2


@contextmanager
def timed(timings_ms: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time of a block to `timings_ms`, in milliseconds."""
    start = time.perf_counter()
    yield
    timings_ms[stage] = timings_ms.get(stage, 0.0) + (time.perf_counter() - start) * 1000.0
