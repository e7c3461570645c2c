"""Photo graphs of an artifact (`photo.onnx`, `photo.int8.onnx`): written, and compared with its graphs of the crop."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import cv2
import numpy as np
import onnx

from mien.data.contract import CROP_PX, Array, align, decode
from mien.data.quality import measure, soften
from mien.models.manifest import GraphFile, Manifest, Precision, default_detector_dir, load_detector, sha256_of
from mien.training.evaluate import open_graph, open_released
from mien.training.graphs import ExportError
from mien.training.photo_graph import photo_graph

logger = logging.getLogger("mien.training")

FILES: Final[dict[Precision, str]] = {"fp32": "photo.onnx", "int8": "photo.int8.onnx"}
MIN_SAME: Final = 0.98  # share of faces with the label of the crop's graph
MAX_DIFFERENCE: Final = {"fp32": 0.01, "int8": 0.02}  # mean, of probabilities; int8 rounds nearly equal crops apart
_CANVASES: Final = 16
_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".webp")


def write_photo_graphs(folder: Path, manifest: Manifest, photos: Iterable[Array]) -> Manifest:
    """Write a photo graph for each precision that runs everywhere, and compare it on photos.

    Args:
        manifest: of the artifact in `folder`, with its calibration, which becomes part of the graphs.
        photos: (H, W, 3) uint8 RGB each; without a face in them, nothing is compared, and a warning says so.
    Returns: the manifest with the new files.
    Raises: ExportError, if a graph differs from the artifact's graph of the crop; ArtifactError, of the detector.
    """
    found_by, photos = load_detector(default_detector_dir()), list(photos)
    written = {}
    for precision, name in FILES.items():
        if precision not in manifest.graphs:
            continue
        detector = onnx.load(default_detector_dir() / found_by.graph.file)
        classifier = onnx.load(folder / manifest.graph(precision).file)
        model = photo_graph(manifest, classifier, detector, score_threshold=found_by.score_threshold)
        onnx.save(model, folder / name)
        faces, difference = compare(folder, manifest, precision, photos)
        if faces == 0:
            logger.warning("%s: no face found in %d photos, nothing was compared", name, len(photos))
        else:
            logger.info("%s: probabilities of %d faces differ by %.4f in the mean", name, faces, difference)
        written[precision] = GraphFile(file=name, sha256=sha256_of(folder / name))
    return manifest.model_copy(update={"photo_graphs": written})


def compare(folder: Path, manifest: Manifest, precision: Precision, photos: Sequence[Array]) -> tuple[int, float]:
    """Compare a photo graph with alignment, classifier and calibration in Python, at the landmarks that it found.

    Returns: number of faces, and the mean difference of their probabilities.
    Raises: ExportError.
    """
    session, model = open_graph(folder / FILES[precision]), open_released(folder, manifest, precision)
    actual, expected = list[Array](), list[Array]()
    for photo in photos:
        landmarks, found = session.run(["landmarks", "probabilities"], {"photo": photo})
        if not len(found):
            continue
        crops = np.stack([align(photo, points) for points in landmarks])
        calibrated = manifest.probabilities(model.logits(crops), "balanced")
        seen = [measure(crop, points) for crop, points in zip(crops, landmarks, strict=True)]
        actual += list(found)
        expected += [soften(row, quality) for row, quality in zip(calibrated, seen, strict=True)]
    if not actual:
        return 0, 0.0
    rows, reference = np.stack(actual), np.stack(expected)
    same = float((rows.argmax(axis=1) == reference.argmax(axis=1)).mean())
    difference = float(np.abs(rows - reference).mean())
    limit = MAX_DIFFERENCE[precision]
    if not (same >= MIN_SAME and difference <= limit):
        raise ExportError(
            f"{FILES[precision]}: of {len(rows)} faces, {100 * same:.1f} % have the label of the {precision} graph, "
            f"expected {MIN_SAME:.0%}; probabilities differ by {difference:.4f}, the limit is {limit}"
        )
    return len(rows), difference


def canvases(crops: Array) -> Iterator[Array]:
    """Photos of six faces each, from aligned crops (N, 112, 112, 3) uint8 RGB: (480, 660, 3) uint8 RGB."""
    side = CROP_PX * 3 // 2
    for start in range(0, min(len(crops), 6 * _CANVASES), 6):
        canvas = np.full((480, 660, 3), 128, np.uint8)
        for place, crop in enumerate(crops[start : start + 6]):
            top, left = 240 * (place // 3) + 36, 220 * (place % 3) + 26
            canvas[top : top + side, left : left + side] = cv2.resize(np.asarray(crop), (side, side))
        yield canvas


def photos_in(folder: Path) -> Iterator[Array]:
    """Upright photos of a folder. Raises: ExportError, if there is none; DecodeError."""
    paths = [path for path in sorted(folder.glob("*")) if path.suffix.lower() in _SUFFIXES]
    if not paths:
        raise ExportError(f"{folder}: no photos ({', '.join(_SUFFIXES)})")
    return (decode(path.read_bytes()) for path in paths)
