"""Benchmark of the detectors on held-out images: faces found by the search that serving runs.

    MIEN_DATA_DIR=... MIEN_MODELS_DIR=... python -m benchmarks.detectors --json out.json

The images are those that training of the released detector did not read, and the reference is YuNet's mean over eight
views (training/detector/evaluate.py, which evaluates a single view). `builtin` is measured at several thresholds; the
released one is the lowest with less than one false face per 100.
"""

import argparse
import time
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from benchmarks.results import publish
from mien.app.errors import DetectorUnavailable
from mien.app.inference.detect import create_detector
from mien.app.inference.detect.base import Detector
from mien.app.settings import load_settings
from mien.data.contract import Array
from mien.models.detector.manifest import default_detector_dir, load_detector
from mien.training.detector.config import DetectorRecipe
from mien.training.detector.evaluate import compare, reference_faces
from mien.training.detector.images import LabeledImages, load_images

THRESHOLDS: Final = (0.7, 0.75, 0.8, 0.85, 0.9)


def score(detector: Detector, images: LabeledImages) -> dict[str, float]:
    """Recall, false faces per 100, landmark error in distances of the eyes, and CPU milliseconds per image."""
    start = time.process_time()
    views = [compare(_rows(detector, one.read()), reference_faces(one), one.faces[:, :4]) for one in images.items]
    faces = sum(len(one.found) for one in views)
    errors = np.concatenate([one.errors for one in views])
    return {
        "faces": faces,
        "recall": sum(int(one.found.sum()) for one in views) / faces,
        "false_per_100": 100 * sum(one.false for one in views) / faces,
        "landmark_error": float(errors.mean()),
        "cpu_ms_per_image": 1000 * (time.process_time() - start) / len(views),
    }


def _rows(detector: Detector, image_bgr: Array) -> Array:
    faces = detector.detect(cv2.cvtColor(image_bgr, cv2.COLOR_BGR2RGB))
    rows = [[*face.box_px, *face.landmarks_px.ravel(), face.score] for face in faces]
    return np.array(rows, np.float32).reshape(-1, 15)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Compare the face detectors on held-out images.")
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    recipe = DetectorRecipe.model_validate(load_detector(default_detector_dir()).recipe)
    images = load_images(recipe.data, "valid")
    results: dict[str, object] = {}
    for threshold in THRESHOLDS:
        settings = load_settings(detector="builtin", detection_threshold=threshold, threads=1)
        results[f"builtin, threshold {threshold}"] = score(create_detector(settings), images)
    try:
        results["yunet"] = score(create_detector(load_settings(detector="yunet", threads=1)), images)
    except DetectorUnavailable as error:
        results["yunet"] = str(error)
    publish(results, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
