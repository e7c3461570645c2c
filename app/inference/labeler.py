"""The path of one photo: decode, detect, align, classify."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Self

import numpy as np

from mien.app.errors import InvalidFace, InvalidRequest
from mien.app.inference.boxes import detections_at, whole_face
from mien.app.inference.classifier import Classifier
from mien.app.inference.decode import Decoded, decode_image
from mien.app.inference.detector import Detector, create_detector
from mien.app.inference.records import NO_CROPS, Box, Detection, Face, Landmarks, Photo, with_ambiguity
from mien.app.inference.search import is_tiled
from mien.app.settings import InferenceSettings
from mien.data.contract import CROP_PX, Array, DegenerateLandmarks, align, fit, roll_degrees
from mien.data.contract.align import similarity
from mien.data.contract.decode import Probe
from mien.data.quality import VOTES_SOFTENING, measure, reasons_of, sharpness, soften

# Minimum side of a face whose crop is cut from a reduced photo, in pixels of that photo: two per pixel of the crop.
_MIN_REDUCED_FACE_PX: Final = 2 * CROP_PX


class Labeler:
    """The stages of serving over one detector and one classifier; thread-safe."""

    def __init__(self, detector: Detector, classifier: Classifier, settings: InferenceSettings) -> None:
        """Combine an open detector and classifier."""
        self.detector, self.classifier, self.settings = detector, classifier, settings

    @classmethod
    def open(cls, settings: InferenceSettings) -> Self:
        """Open the detector and the model named in the settings. Raises: StartupError and subclasses, ArtifactError."""
        return cls(create_detector(settings), Classifier(settings), settings)

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
        admit: Callable[[Probe], None] | None = None,
    ) -> Photo:
        """Decode, detect and align; a large JPEG is decoded at reduced size if its faces stay large enough.

        Args:
            image: the bytes of a file, or (H, W, 3) uint8 RGB pixels.
            whole: the image is one face, brow to chin with a margin, of any size; nothing is detected. One of 112x112
                pixels, such as a crop of `mien label`, is taken as it is.
            boxes: the faces, instead of detected ones; the result has one face for each, in this order. Boxes are in
                pixels of the upright photo; a Detection has landmarks, too (`boxes.py`).
            keep_pixels: keep the pixels in the result.
            admit: for the bytes of an untrusted sender: see `decode_image`.
        Raises: DecodeError and its subclasses; InvalidFace, for boxes that cannot be used, or a whole image of a
            pixel; InvalidRequest, for options that exclude each other.
        """
        if whole and boxes is not None:
            raise InvalidRequest("whole and boxes: choose one of them")
        timings_ms: dict[str, float] = {}
        detects = not whole and boxes is None
        with timed(timings_ms, "decode"):
            decoded = self._decoded(image, reduced=self.settings.reduced_decode and detects, admit=admit)
        detections: tuple[Detection, ...]
        notes: tuple[str, ...] = ()
        with timed(timings_ms, "detect"):
            if whole:
                detections = (_whole_face(decoded.image),)
            elif boxes is not None:
                detections = self._at_boxes(decoded.image, boxes)
            else:
                detections, notes = self._detect(decoded)
        smallest_px = min((face.box.short_side_px for face in detections), default=np.inf)
        fits = decoded.width * decoded.height <= self.settings.max_pixels
        if decoded.scale > 1 and smallest_px < _MIN_REDUCED_FACE_PX * decoded.scale and fits:
            with timed(timings_ms, "decode"):
                decoded = self._decoded(image)
        share = 1 / decoded.scale
        with timed(timings_ms, "align"):
            if whole:
                crops = [fit(decoded.image)]
            else:
                crops = [align(decoded.image, face.scaled(share, share).landmarks_px) for face in detections]
        return Photo(
            decoded.width,
            decoded.height,
            detections,
            np.stack(crops) if crops else NO_CROPS,
            pixels=decoded.image if keep_pixels else None,
            timings_ms=timings_ms,
            notes=(*decoded.notes, *notes),
        )

    def _decoded(
        self, image: bytes | Array, *, reduced: bool = False, admit: Callable[[Probe], None] | None = None
    ) -> Decoded:
        if isinstance(image, bytes):
            return decode_image(image, self.settings, reduced=reduced, admit=admit)
        return Decoded(image, width=image.shape[1], height=image.shape[0])

    def _detect(self, decoded: Decoded) -> tuple[tuple[Detection, ...], tuple[str, ...]]:
        """Faces of at least `min_face_px`, at most `max_faces`, in pixels of the photo, largest first; and notes."""
        faces = [face.scaled(decoded.scale, decoded.scale) for face in self.detector.detect(decoded.image)]
        faces = [face for face in faces if face.box.short_side_px >= self.settings.min_face_px]
        limit, size = self.settings.max_faces, (decoded.width, decoded.height)
        is_reduced = max(size) > 2 * self.settings.detection_max_px and not is_tiled(*size, self.settings)
        notes = {"max_faces": len(faces) > limit, "reduced_search": is_reduced}
        return tuple(faces[:limit]), tuple(note for note, applies in notes.items() if applies)

    def _at_boxes(self, image: Array, boxes: Sequence[Box | Detection]) -> tuple[Detection, ...]:
        if len(boxes) > self.settings.max_faces:
            raise InvalidRequest(f"boxes: {len(boxes):,}, at most {self.settings.max_faces:,} per image (max_faces)")
        return detections_at(image, boxes, self.detector)

    def classify(self, photos: Sequence[Photo], *, threshold: float | None = None) -> list[Photo]:
        """Label the faces of prepared photos, in one call of the classifier.

        Args:
            photos: their crops are classified together; `timings_ms` of each gets its part of the time by its faces.
            threshold: a face is uncertain if its confidence is below; by default the threshold of the model.
        """
        timings_ms: dict[str, float] = {}
        with timed(timings_ms, "classify"):
            rows = self.classifier.classify(np.concatenate([NO_CROPS, *(photo.crops for photo in photos)]))
        votes = self.classifier.votes(rows)
        labeled, first = [], 0
        for photo in photos:
            last = first + len(photo.crops)
            part = len(photo.crops) / len(rows) if len(rows) else 1 / len(photos)
            faces = tuple(
                self._face(index, *values, threshold)
                for index, values in enumerate(
                    zip(photo.detections, photo.crops, rows[first:last], votes[first:last], strict=True)
                )
            )
            timings = photo.timings_ms | {"classify": timings_ms["classify"] * part}
            labeled.append(replace(photo, faces=faces, timings_ms=timings))
            first = last
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
        row = soften(row, quality)
        votes = soften(votes, quality, VOTES_SOFTENING)
        probabilities: dict[str, float] = dict(zip(manifest.labels, row.tolist(), strict=True))
        best = int(row.argmax())
        label = manifest.labels[best]
        confidence = probabilities[label]
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


def _whole_face(image: Array) -> Detection:
    height, width = image.shape[:2]
    face = whole_face(image)
    try:
        similarity(face.landmarks_px)
    except DegenerateLandmarks as error:
        raise InvalidFace(f"whole: image of {width}x{height} px, too small for a face") from error
    return face


@contextmanager
def timed(timings_ms: dict[str, float], stage: str) -> Iterator[None]:
    """Add the time of a block to `timings_ms`, in milliseconds."""
    start = time.perf_counter()
    yield
    timings_ms[stage] = timings_ms.get(stage, 0.0) + (time.perf_counter() - start) * 1000.0
