"""Measurement of YuNet's landmarks on the data sets' faces: evidence for `TEMPLATE_PX` in data/contract/align.py.

    python -m tools.measure_template --ferplus ROOT --muxspace ROOT --detector face_detection_yunet_2023mar.onnx

FERPlus images are face crops without landmarks. Every tenth training image is enlarged four times, padded (YuNet misses
faces that fill the image) and searched. muxspace crops include YuNet's landmarks and box. Both are compared relative to
the face box, and each candidate template is evaluated by how much of the box its crop contains. Results:
docs/decisions/0002-crop-template.md.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import cv2
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from mien.data.contract import CROP_PX, Array
from mien.data.contract.align import TEMPLATE_PX, similarity
from mien.data.readers.base import Reader, open_reader

Points = tuple[tuple[float, float], ...]
POINTS: Final = ("image-left eye", "image-right eye", "nose", "image-left mouth", "image-right mouth")
ENLARGED_PX: Final = 192
BORDER_PX: Final = 64
MIN_SCORE: Final = 0.6
# insightface, python-package/insightface/utils/face_align.py: the template of ArcFace
ARCFACE_PX: Final = ((38.2946, 51.6963), (73.5318, 51.5014), (56.0252, 71.7366), (41.5493, 92.3655), (70.7299, 92.2041))


@dataclass(frozen=True, slots=True)
class Faces:
    """Measured faces of one set, in pixels of their images.

    Attributes:
        landmarks_px: (N, 5, 2), in the order of `POINTS`.
        boxes_px: (N, 4), x, y, width, height.
        searched: number of searched images.
    """

    landmarks_px: Array
    boxes_px: Array
    searched: int

    def landmarks_in_box(self) -> Array:
        """Median landmarks from the box's top-left corner in units of its longer side, (5, 2)."""
        longer = self.boxes_px[:, None, 2:].max(axis=2, keepdims=True)
        return np.asarray(np.median((self.landmarks_px - self.boxes_px[:, None, :2]) / longer, axis=0))

    def landmarks_in_square(self) -> Array:
        """Landmarks in a square crop around the center of the box, without rotation: crop pixels, (N, 5, 2)."""
        side = self.boxes_px[:, 2:].max(axis=1)
        corner = self.boxes_px[:, :2] + self.boxes_px[:, 2:] / 2 - side[:, None] / 2
        return np.asarray((self.landmarks_px - corner[:, None]) / side[:, None, None] * CROP_PX)

    def landmarks_aligned(self) -> Array:
        """Landmarks after aligning to the template: crop pixels, (N, 5, 2)."""
        return np.asarray([cv2.transform(face[None], similarity(face))[0] for face in self.landmarks_px])

    def boxes_in_crop(self, template_px: Points) -> Array:
        """Box edges after aligning to a template: left, top, right, bottom in crop pixels, (N, 4)."""
        edges = []
        for landmarks, (x, y, width, height) in zip(self.landmarks_px, self.boxes_px, strict=True):
            across, down = x + width / 2, y + height / 2
            middles = np.array([[[x, down], [across, y], [x + width, down], [across, y + height]]])
            left, top, right, bottom = cv2.transform(middles, similarity(landmarks, template_px))[0]
            edges.append((left[0], top[1], right[0], bottom[1]))
        return np.asarray(edges)


def detect_on_crops(reader: Reader, detector_file: Path, *, step: int = 10) -> Faces:
    """Find the face with the highest score on every `step`-th training image, in pixels of the enlarged image."""
    detector = cv2.FaceDetectorYN.create(str(detector_file), "", (ENLARGED_PX + 2 * BORDER_PX,) * 2, MIN_SCORE)
    samples = reader.samples("train")[::step]
    best_faces = []
    for sample in samples:
        enlarged = cv2.resize(reader.image(sample), (ENLARGED_PX, ENLARGED_PX), interpolation=cv2.INTER_CUBIC)
        framed = cv2.copyMakeBorder(enlarged, BORDER_PX, BORDER_PX, BORDER_PX, BORDER_PX, cv2.BORDER_CONSTANT)
        _, faces = detector.detect(np.ascontiguousarray(framed[:, :, ::-1]))
        if faces is not None:
            best_faces.append(max(faces, key=lambda face: face[-1]))
    rows = np.asarray(best_faces, dtype=np.float64)
    return Faces(rows[:, 4:14].reshape(-1, 5, 2) - BORDER_PX, rows[:, :4] - (BORDER_PX, BORDER_PX, 0, 0), len(samples))


def published_landmarks(reader: Reader) -> Faces:
    """Landmarks and boxes that are part of a data set."""
    samples = reader.samples("train")
    landmarks = np.asarray([sample.landmarks_px for sample in samples], dtype=np.float64)
    return Faces(landmarks, np.asarray([sample.box_px for sample in samples], dtype=np.float64), len(samples))


def main(
    ferplus: Annotated[Path, typer.Option(help="FERPlus: folder or zip.")],
    muxspace: Annotated[Path, typer.Option(help="muxspace crops: folder or zip.")],
    detector: Annotated[Path, typer.Option(help="YuNet's ONNX file.")],
) -> None:
    """Print landmark positions, and how much of the face each candidate template contains."""
    console = Console()
    crops = detect_on_crops(open_reader("ferplus", ferplus), detector)
    photos = published_landmarks(open_reader("muxspace", muxspace))
    console.print(f"FERPlus train: a face on {len(crops.boxes_px)} of {crops.searched} images")
    console.print(f"muxspace train: {photos.searched} faces")
    console.print(_landmark_table(crops, photos))
    console.print(_framing_table(crops, photos))
    console.print(_spread_table(crops, photos))
    zoom = [CROP_PX / ENLARGED_PX / np.hypot(*similarity(face)[:, 0]) for face in crops.landmarks_px]
    low, middle, high = np.percentile(zoom, (5, 50, 95))
    console.print(f"FERPlus faces, original size / aligned size: {middle:.2f} (5 to 95 %: {low:.2f} to {high:.2f})")


def _landmark_table(crops: Faces, photos: Faces) -> Table:
    table = Table("point", "template", "FERPlus median", "std", "FERPlus in box", "muxspace in box")
    in_crop = crops.landmarks_px * CROP_PX / ENLARGED_PX
    columns = [np.asarray(TEMPLATE_PX), np.median(in_crop, axis=0), in_crop.std(axis=0)]
    boxes = [crops.landmarks_in_box(), photos.landmarks_in_box()]
    for number, point in enumerate(POINTS):
        cells = [f"{x:.1f}, {y:.1f}" for x, y in (column[number] for column in columns)]
        table.add_row(point, *cells, *(f"{x:.3f}, {y:.3f}" for x, y in (box[number] for box in boxes)))
    return table


def _framing_table(crops: Faces, photos: Faces) -> Table:
    """Compare templates by the face box in their crops, from brow or hairline to chin."""
    table = Table(
        "crop", "left", "top", "right", "bottom", "chin cut by 4 px", title="median edges of the face box, px of 112"
    )
    # share of faces whose box extends at least 4 px below the crop
    x, y, width, height = (crops.boxes_px * CROP_PX / ENLARGED_PX).T
    rows = {"FERPlus, unaligned": np.stack([x, y, x + width, y + height], axis=1)}
    for name, template in (("this template", TEMPLATE_PX), ("ArcFace's template", ARCFACE_PX)):
        rows[f"FERPlus, {name}"] = crops.boxes_in_crop(template)
        rows[f"muxspace, {name}"] = photos.boxes_in_crop(template)
    for name, edges in rows.items():
        cut = np.mean(edges[:, 3] > CROP_PX + 4)
        table.add_row(name, *(f"{edge:.1f}" for edge in np.median(edges, axis=0)), f"{cut:.1%}")
    return table


def _spread_table(crops: Faces, photos: Faces) -> Table:
    table = Table("crop", "x", "y", title="standard deviation of the landmarks, mean of five, px of 112")
    rows = {"FERPlus, unaligned": crops.landmarks_px * CROP_PX / ENLARGED_PX}
    for name, faces in (("FERPlus", crops), ("muxspace", photos)):
        rows[f"{name}, square around the box"] = faces.landmarks_in_square()
        rows[f"{name}, this template"] = faces.landmarks_aligned()
    for name, landmarks in rows.items():
        x, y = landmarks.std(axis=0).mean(axis=0)
        table.add_row(name, f"{x:.1f}", f"{y:.1f}")
    return table


if __name__ == "__main__":
    typer.run(main)
