"""How fast does YuNet run here, against OpenCV's own runner, and which faces of a folder of photos are found?

`MIEN_MODELS_DIR=... python -m benchmarks.detection --photos DIR --json out.json`: milliseconds per network run at
several sizes (median of many), then for every photo the faces of one pass at 640 px as reference, and how many of them
the search finds upright and with the photo turned by 90, 180 and 270 degrees.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import cv2
import numpy as np

from app.detect.base import Face, overlap
from app.detect.search import MERGE_OVERLAP, Plan, find_faces, one_pass, unturned
from app.detect.weights import require_yunet
from app.detect.yunet import NMS_OVERLAP, TOP_K, YuNet
from app.settings import load_settings
from data.contract import Array, decode, roll_degrees

SIZES: Final = ((160, 160), (320, 320), (640, 640), (1600, 1152))
TURNS: Final = {0: None, 1: cv2.ROTATE_90_CLOCKWISE, 2: cv2.ROTATE_180, 3: cv2.ROTATE_90_COUNTERCLOCKWISE}
_MAX_ROLL_ERROR_DEGREES: Final = 15


def milliseconds(function: Callable[[], object], repeats: int) -> float:
    """Median time of a call, after one to warm up."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append((time.perf_counter() - start) * 1000)
    return statistics.median(times)


def runners(path: Path, threshold: float, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of one run, by size and runner, one thread each, on noise (no face is decoded)."""
    cv2.setNumThreads(1)
    yunet = YuNet(path, threshold=threshold, plan=Plan(640, 1600, turned=False), threads=1)
    table = {}
    for width, height in SIZES:
        image = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
        opencv = cv2.FaceDetectorYN.create(str(path), "", (width, height), threshold, NMS_OVERLAP, TOP_K)
        table[f"{width}x{height}"] = {
            "onnxruntime_ms": milliseconds(partial(yunet.rows, image), repeats),
            "opencv_ms": milliseconds(partial(opencv.detect, image), repeats),
        }
    return table


def photos(folder: Path) -> Iterator[Array]:
    """Decoded JPEG photos of a folder, by name."""
    for path in sorted(folder.glob("*.jpg")):
        yield decode(path.read_bytes())


def found(folder: Path, yunet: YuNet, plan: Plan) -> dict[str, dict[str, float]]:
    """By turn: faces of one upright pass, how many of them the search finds with their roll, others it finds, time."""
    table = {
        str(90 * turns): {"reference": 0.0, "found": 0.0, "right_roll": 0.0, "others": 0.0, "ms_median": 0.0}
        for turns in TURNS
    }
    times: dict[str, list[float]] = {name: [] for name in table}
    for image in photos(folder):
        reference = one_pass(image, yunet.rows, plan.first_px)
        for turns, code in TURNS.items():
            name = str(90 * turns)
            turned = image if code is None else cv2.rotate(image, code)
            start = time.perf_counter()
            faces = find_faces(turned, yunet.rows, plan)
            times[name].append((time.perf_counter() - start) * 1000)
            height, width = image.shape[:2]
            back = [unturned(face, turns, width=width, height=height) for face in faces] if turns else faces
            for key, count in _compare(reference, back).items():
                table[name][key] += count
    return {name: row | {"ms_median": statistics.median(times[name])} for name, row in table.items()}


def _compare(reference: list[Face], faces: list[Face]) -> dict[str, int]:
    pairs = [(face, _nearest(face, faces)) for face in reference]
    same = [(face, other) for face, other in pairs if other and overlap(face.box_px, other.box_px) > MERGE_OVERLAP]
    rolls = [abs(roll_degrees(face.landmarks_px) - roll_degrees(other.landmarks_px)) for face, other in same]
    others = [face for face in faces if all(overlap(face.box_px, other.box_px) <= MERGE_OVERLAP for other in reference)]
    return {
        "reference": len(reference),
        "found": len(same),
        "right_roll": sum(roll < _MAX_ROLL_ERROR_DEGREES for roll in rolls),
        "others": len(others),
    }


def _nearest(face: Face, faces: list[Face]) -> Face | None:
    def shared(other: Face) -> float:
        return overlap(face.box_px, other.box_px)

    return max(faces, key=shared, default=None)


def main(arguments: list[str] | None = None) -> int:
    """Print both tables, and write them where asked."""
    parser = argparse.ArgumentParser(description="Measure the detector.")
    parser.add_argument("--photos", type=Path, help="folder of JPEG photos; only the runners are timed without it")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args(arguments)
    settings = load_settings()
    path = require_yunet(settings.models_dir)
    result: dict[str, object] = {"runners": runners(path, settings.detection_threshold, options.repeats)}
    if options.photos:
        plan = Plan(settings.detection_px, settings.detection_max_px, settings.find_turned)
        yunet = YuNet(path, threshold=settings.detection_threshold, plan=plan, threads=1)
        result["found_by_turn"] = found(options.photos, yunet, plan)
    text = json.dumps(result, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
