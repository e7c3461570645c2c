"""Benchmark of YuNet: speed compared with OpenCV's runner, and faces found in rotated photos.

    MIEN_MODELS_DIR=... python -m benchmarks.detection --photos DIR --json out.json

Reports the median milliseconds per network run at several sizes. With `--photos`, the faces of one pass at 640 px are
the reference, and the search is counted on each photo upright and rotated by 90, 180 and 270 degrees; likewise on
close-ups: large faces cut out tightly and resized to 640 px.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from benchmarks.results import publish
from mien.app.inference.classifier import Classifier, create_classifier
from mien.app.inference.detect.base import Face, iou
from mien.app.inference.detect.search import CLOSE_UP_PX, MERGE_IOU, Plan, find_faces, one_pass, rotate_back
from mien.app.inference.detect.weights import require_yunet
from mien.app.inference.detect.yunet import YuNet
from mien.app.settings import load_settings
from mien.data.contract import Array, align, decode, roll_degrees
from mien.models.detector.decode import NMS_IOU, TOP_K

SIZES: Final = ((160, 160), (320, 320), (640, 640), (1600, 1152))
TURNS: Final = {0: None, 1: cv2.ROTATE_90_CLOCKWISE, 2: cv2.ROTATE_180, 3: cv2.ROTATE_90_COUNTERCLOCKWISE}
_MAX_ROLL_ERROR_DEGREES: Final = 15
_CLOSE_UP_PX: Final = 640
_MIN_CLOSE_UP_PX: Final = 80


def milliseconds(function: Callable[[], object], repeats: int) -> float:
    """Median time of a call, after one warm-up call."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def runners(path: Path, threshold: float, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds per run by size and runner, with one thread, on noise (no face is decoded)."""
    cv2.setNumThreads(1)
    yunet = YuNet(path, threshold=threshold, plan=Plan(640, 1600, detect_rotated=False), threads=1)
    table = {}
    for width, height in SIZES:
        image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        opencv = cv2.FaceDetectorYN.create(str(path), "", (width, height), threshold, NMS_IOU, TOP_K)
        table[f"{width}x{height}"] = {
            "onnxruntime_ms": milliseconds(partial(yunet.rows, image), repeats),
            "opencv_ms": milliseconds(partial(opencv.detect, image), repeats),
        }
    return table


def photos(folder: Path) -> Iterator[Array]:
    """Decoded JPEG photos of a folder, sorted by name."""
    for path in sorted(folder.glob("*.jpg")):
        yield decode(path.read_bytes())


def close_ups(folder: Path, yunet: YuNet, plan: Plan) -> Iterator[Array]:
    """The large faces of photos, each cut out tightly and enlarged or reduced to 640 pixels."""
    for image in photos(folder):
        for face in one_pass(image, yunet.rows, plan.first_px):
            x, y, width, height = (max(0, round(value)) for value in face.box_px)
            if min(width, height) >= _MIN_CLOSE_UP_PX:
                cut = image[y : y + height, x : x + width]
                scale = _CLOSE_UP_PX / max(cut.shape[:2])
                yield cv2.resize(cut, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)


def found(
    images: Iterable[Array], yunet: YuNet, plan: Plan, classifier: Classifier, *, reference_px: int
) -> dict[str, dict[str, float]]:
    """By rotation: reference faces, how many are found, with the right roll, and also the same label; other faces."""
    columns = ("reference", "found", "right_roll", "right_label", "others", "ms_median")
    table = {str(90 * turns): dict.fromkeys(columns, 0.0) for turns in TURNS}
    times: dict[str, list[float]] = {name: [] for name in table}
    for image in images:
        reference = one_pass(image, yunet.rows, reference_px)
        for turns, code in TURNS.items():
            name = str(90 * turns)
            turned = image if code is None else cv2.rotate(image, code)
            start = time.perf_counter()
            faces = find_faces(turned, yunet.rows, plan)
            times[name].append((time.perf_counter() - start) * 1000)
            height, width = image.shape[:2]
            back = [rotate_back(face, turns, width=width, height=height) for face in faces] if turns else faces
            for key, count in _compare(image, reference, back, classifier).items():
                table[name][key] += count
    return {name: row | {"ms_median": statistics.median(times[name])} for name, row in table.items()}


def _compare(image: Array, reference: list[Face], faces: list[Face], classifier: Classifier) -> dict[str, int]:
    pairs = [(face, _nearest(face, faces)) for face in reference]
    same = [(face, other) for face, other in pairs if other and iou(face.box_px, other.box_px) > MERGE_IOU]
    upright = [(face, other) for face, other in same if _roll_error(face, other) < _MAX_ROLL_ERROR_DEGREES]
    others = [face for face in faces if all(iou(face.box_px, other.box_px) <= MERGE_IOU for other in reference)]
    return {
        "reference": len(reference),
        "found": len(same),
        "right_roll": len(upright),
        "right_label": sum(
            len({int(classifier.classify(_crop(image, face)).argmax()) for face in pair}) == 1 for pair in upright
        ),
        "others": len(others),
    }


def _crop(image: Array, face: Face) -> Array:
    return align(image, face.landmarks_px)[None]


def _roll_error(face: Face, other: Face) -> float:
    difference = roll_degrees(face.landmarks_px) - roll_degrees(other.landmarks_px)
    return abs((difference + 180) % 360 - 180)


def _nearest(face: Face, faces: list[Face]) -> Face | None:
    def shared(other: Face) -> float:
        return iou(face.box_px, other.box_px)

    return max(faces, key=shared, default=None)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description="Benchmark the face detector.")
    parser.add_argument("--photos", type=Path, help="folder of JPEG photos; without it, only the runners are timed")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args(arguments)
    settings = load_settings()
    path = require_yunet(settings.models_dir)
    results: dict[str, object] = {"runners": runners(path, settings.detection_threshold, options.repeats)}
    if options.photos:
        plan = Plan(settings.detection_px, settings.detection_max_px, settings.detect_rotated)
        yunet = YuNet(path, threshold=settings.detection_threshold, plan=plan, threads=1)
        classifier = create_classifier(settings)
        results["found_by_turn"] = found(photos(options.photos), yunet, plan, classifier, reference_px=plan.first_px)
        results["close_ups_by_turn"] = found(
            close_ups(options.photos, yunet, plan), yunet, plan, classifier, reference_px=CLOSE_UP_PX
        )
    publish(results, options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
