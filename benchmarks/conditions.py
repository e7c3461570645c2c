"""Reasons for doubt on real photos: what the model's manifest states, against what is found.

    python -m benchmarks.conditions --photos DIR --json out/conditions.json

The largest face of each photo is resized, blurred, darkened or covered by objects, and detected and labeled again. The
results compare how often the label stays the same, among faces that get the reason, with what the manifest states of
faces of the validation split (`agreement`). `false` is the share of the photos as they are that get the reason.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np

from benchmarks.results import benchmark_parser, publish
from mien.app.inference.detect.base import iou, scaled
from mien.app.inference.pipeline import LabeledFace, Pipeline, build_pipeline
from mien.app.settings import load_settings
from mien.data.contract import CROP_PX, Array, align, decode
from mien.data.contract.align import similarity
from mien.data.quality import FACE_SHARE
from mien.training.conditions import STRENGTHS, cover

MARGIN: Final = 1.5  # of the photo around the face, in widths of the face
MIN_IOU: Final = 0.3
MIN_PX: Final = 48  # of the face in the photo
DEGRADED: Final = {
    "small": STRENGTHS["face width, px"],
    "blurred": STRENGTHS["blur, sigma in px"],
    "dark": STRENGTHS["brightness"],
    "covered": (1.0, 2.0, 3.0, 4.0),  # numbers of objects
}


def degrade(patch: Array, landmarks_px: Array, reason: str, strength: float) -> tuple[Array, float]:
    """Degrade a face in its photo. Returns: the photo, and the scale to which it was resized."""
    matrix = similarity(landmarks_px)
    crop_px = float(np.hypot(matrix[0, 0], matrix[1, 0]))  # pixels of the crop per pixel of the photo
    rng = np.random.default_rng(int(1000 * strength) + len(patch))
    match reason:
        case "small":
            scale = strength / (FACE_SHARE * CROP_PX / crop_px)
            return cv2.resize(patch, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), scale
        case "blurred":
            return cv2.GaussianBlur(patch, (0, 0), strength / crop_px), 1.0
        case "dark":
            gain = min(1.0, 255 * strength / align(patch, landmarks_px).mean())
            dark = patch * gain + rng.normal(0, 2, patch.shape[:2])[..., None]
            return np.clip(np.rint(dark), 0, 255).astype(np.uint8), 1.0
        case _:
            crop = align(patch, landmarks_px)
            covered = cover(crop, "eyes" if strength % 2 else "mouth", rng)
            size = patch.shape[1::-1]
            changed = (covered != crop).any(axis=2).astype(np.uint8)
            inverse = cv2.WARP_INVERSE_MAP | cv2.INTER_LINEAR
            mask = cv2.warpAffine(changed, matrix, size, flags=cv2.WARP_INVERSE_MAP | cv2.INTER_NEAREST)
            return np.where(mask[..., None] > 0, cv2.warpAffine(covered, matrix, size, flags=inverse), patch), 1.0


def originals(pipeline: Pipeline, folder: Path) -> Iterator[tuple[Array, LabeledFace]]:
    """The part of each photo around its largest face, and that face in it."""
    for path in sorted(folder.glob("*.jpg")):
        photo = decode(path.read_bytes())
        faces = pipeline.analyze_pixels(photo).faces
        if faces and faces[0].short_side_px >= MIN_PX:
            x, y, width, height = faces[0].box_px
            margin = MARGIN * max(width, height)
            top, left = max(0, int(y - margin)), max(0, int(x - margin))
            patch = np.ascontiguousarray(photo[top : int(y + height + margin), left : int(x + width + margin)])
            if faces := pipeline.analyze_pixels(patch).faces:
                yield patch, faces[0]


def find(pipeline: Pipeline, patch: Array, original: LabeledFace, scale: float) -> LabeledFace | None:
    """The same face in the degraded photo; None if it is not detected."""
    place = scaled(original, scale, scale).box_px
    faces = pipeline.analyze_pixels(patch).faces
    best = max(faces, key=lambda face: iou(face.box_px, place), default=None)
    return best if best is not None and iou(best.box_px, place) >= MIN_IOU else None


def run(folder: Path) -> dict[str, Any]:
    """Degrade, label and compare; the results by reason. Raises: MienError, OSError."""
    pipeline = build_pipeline(load_settings(device="cpu", min_face_px=4))
    conditions = pipeline.classifier.manifest.conditions
    if conditions is None:
        raise SystemExit(f"{pipeline.classifier.manifest.name} has no measured conditions.")
    faces = list(originals(pipeline, folder))
    results: dict[str, Any] = {"model": pipeline.classifier.manifest.name, "faces": len(faces), "reasons": {}}
    for reason, strengths in DEGRADED.items():
        # of the faces that are found again, with the reason and without: whether with the same label, and confidence
        having: list[tuple[bool, float]] = []
        others: list[tuple[bool, float]] = []
        for patch, original in faces:
            for strength in strengths:
                degraded, scale = degrade(patch, original.landmarks_px, reason, strength)
                if again := find(pipeline, degraded, original, scale):
                    kind = having if reason in again.flaws else others
                    kind.append((again.label == original.label, again.confidence))
        stated = conditions.reasons[reason].agreement
        found_agreement, mean_confidence = np.mean(having or [(False, 0.0)], axis=0)
        results["reasons"][reason] = {
            "degraded": len(faces) * len(strengths),
            "detected": len(having) + len(others),
            "has_reason": len(having),
            "stated_agreement": stated.value,
            "stated_low": stated.low,
            "stated_high": stated.high,
            "found_agreement": float(found_agreement),
            "mean_confidence": float(mean_confidence),
            "agreement_without_reason": float(np.mean([agrees for agrees, _ in others] or [False])),
            "false": float(np.mean([reason in original.reasons for _, original in faces] or [False])),
        }
    return results


def main() -> None:
    """Command line."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--photos", type=Path, required=True, help="folder of photos (.jpg)")
    options = parser.parse_args()
    publish(run(options.photos), options.json)


if __name__ == "__main__":
    main()
