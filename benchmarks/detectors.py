"""Benchmark of the detectors on held-out images: faces found by the search that serving runs.

    MIEN_DATA_DIR=... MIEN_MODELS_DIR=... python -m benchmarks.detectors [--artifact DIR] [--photos DIR] --json out.json

The images are the test split of the released detector, or with `--split valid` those that its threshold is chosen on.
The reference is the mean of YuNet's detections in several views (training/detector/evaluate.py, which evaluates a
single view). `builtin` has the threshold of its release, unless MIEN_DETECTION_THRESHOLD is set. For other photos, the
labels of the faces that either detector finds are compared. --artifact adds a detector, on the same images.
"""

import time
from collections import Counter
from pathlib import Path

import cv2
import numpy as np

from benchmarks.results import benchmark_parser, publish
from mien.app.inference.detect import create_detector
from mien.app.inference.detect.base import Detector, iou
from mien.app.inference.detect.builtin import open_artifact
from mien.app.inference.labeler import Labeler
from mien.app.settings import load_settings
from mien.data.contract import Array
from mien.models.detector.manifest import default_detector_dir, load_detector
from mien.training.detector.config import DetectorRecipe
from mien.training.detector.evaluate import SAME_IOU, SIZES_PX, compare, reference_faces, resized
from mien.training.detector.images import LabeledImages, load_images


def score(detector: Detector, images: LabeledImages) -> dict[str, float]:
    """Recall, false faces per 100, landmark error in distances of the eyes, and CPU milliseconds per image.

    `recall_small` is of copies in which a face has 24 to 48 px.
    """
    start = time.process_time()
    views = [compare(_rows(detector, item.read()), reference_faces(item), item.faces[:, :4]) for item in images.items]
    faces = sum(len(view.found) for view in views)
    taken_ms = 1000 * (time.process_time() - start) / len(views)
    errors = np.concatenate([view.errors for view in views])
    small = [compare(_rows(detector, image), *known).found for image, *known in resized(images, *SIZES_PX[1])]
    return {
        "faces": faces,
        "recall": sum(int(view.found.sum()) for view in views) / faces,
        "false_per_100": 100 * sum(view.false for view in views) / faces,
        "landmark_error": float(errors.mean()),
        "recall_small": float(np.concatenate(small).mean()),
        "cpu_ms_per_image": taken_ms,
    }


def compare_labels(photos: list[Path]) -> dict[str, int]:
    """YuNet's faces in photos, those that the built-in detector finds, its other faces, and faces with other labels."""
    yunet, builtin = (Labeler.open(load_settings(detector=name, threads=1)) for name in ("yunet", "builtin"))
    counts = Counter[str]()
    for photo in photos:
        wanted, others = (pipeline.label(photo.read_bytes()).faces for pipeline in (yunet, builtin))
        pairs = [(face, other) for face in wanted for other in others if iou(face.box, other.box) >= SAME_IOU]
        counts["faces"] += len(wanted)
        counts["found"] += len({id(face) for face, _ in pairs})
        counts["other faces"] += len(others) - len({id(other) for _, other in pairs})
        counts["other labels"] += sum(face.label != other.label for face, other in pairs)
        counts["other labels, both certain"] += sum(
            face.label != other.label and not (face.uncertain or other.uncertain) for face, other in pairs
        )
    return dict(counts)


def _opened(artifact: Path) -> Detector:
    manifest = load_detector(artifact)
    return open_artifact(manifest.name, artifact, manifest, load_settings(threads=1))


def _rows(detector: Detector, image_bgr: Array) -> Array:
    faces = detector.detect(cv2.cvtColor(image_bgr, cv2.COLOR_BGR2RGB))
    rows = [[*face.box, *face.landmarks_px.ravel(), face.score] for face in faces]
    return np.array(rows, np.float32).reshape(-1, 15)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--split", choices=("test", "valid"), default="test", help="default: test")
    parser.add_argument("--artifact", type=Path, action="append", default=[], help="folder of a further detector")
    parser.add_argument("--photos", type=Path, help="folder of photos whose labels are compared")
    options = parser.parse_args(arguments)
    released = load_detector(default_detector_dir())
    images = load_images(DetectorRecipe.model_validate(released.recipe).data, options.split)
    results: dict[str, object] = {}
    detectors = [create_detector(load_settings(detector=name, threads=1)) for name in ("builtin", "yunet")]
    for detector in (*detectors, *map(_opened, options.artifact)):
        results[detector.name] = score(detector, images)
    if options.photos is not None:
        results["photos"] = compare_labels(sorted(options.photos.glob("*.jpg")))
    publish(results, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
