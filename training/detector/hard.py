"""Hard negatives: what a released detector takes for faces in the training images, and YuNet in none of its views."""

from functools import partial
from pathlib import Path
from typing import Final

import cv2
from rich.progress import track

from mien.data.contract import Array
from mien.models.detector.decode import detect_rows
from mien.models.detector.manifest import load_detector
from mien.training.detector.images import LabeledImage, LabeledImages
from mien.training.detector.teacher import box_iou
from mien.training.evaluate import open_graph

_SCALES: Final = (0.5, 1.0, 2.0)
_MAX_SIDE_PX: Final = 896
_MIN_SCORE: Final = 0.5
_MAX_IOU: Final = 0.1  # with a face, or with what may be one


def false_positives(artifact: Path, images: LabeledImages) -> list[tuple[LabeledImage, Array]]:
    """Images and a false positive (1, 15) in each, at three scales; an image can occur several times.

    Raises: ArtifactError, DatasetError.
    """
    graph = artifact / load_detector(artifact).graph.file
    detect = partial(detect_rows, open_graph(graph, threads=1).run, threshold=_MIN_SCORE)
    hard = []
    for item in track(images.items, description="hard negatives", disable=len(images) < 200):
        image = item.read()
        for scale in _SCALES:
            if scale * max(image.shape) <= _MAX_SIDE_PX:
                rows = detect(cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA))
                rows[:, :14] /= scale
                is_false = ~(box_iou(rows[:, :4], item.faces[:, :4]) > _MAX_IOU).any(axis=1)
                hard += [(item, row[None]) for row in rows[is_false]]
    return hard
