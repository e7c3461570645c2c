"""Face detection: passes of one network over sizes and rotations of an image, merged into one list of faces.

The network works best on upright faces of about 10 to 300 px. The first pass reduces the image to one size. If it finds
no faces or small ones, there is a larger pass, and a very small one for faces that fill the image; if these find none,
there is a last one at another size. If no face has a high score, and one of them does not score highest upright,
rotated copies are searched: faces on their side have lower scores and wrong landmarks. Wide images, or all large ones
if the settings say so, are searched at full size in overlapping tiles: the memory does not depend on their size.

Both detectors have YuNet's outputs (Wu, Peng, Yu 2023, "YuNet: A Tiny Millisecond-level Face Detector"). In units of
cells, a cell predicts the offset of the center of its box, the logarithm of the size, and the offsets of the landmarks.
On a CPU, a pass runs at the size of its image. A GPU prepares the convolutions of every new shape for seconds: there,
images are padded to a few fixed sizes, and those of all threads that wait share a run
(docs/decisions/0003-yunet-in-onnxruntime.md).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import cv2
import numpy as np

from mien.app.inference.batcher import Batcher
from mien.app.inference.classifier import CPU, FixedBatches, Session, open_session
from mien.app.inference.records import Box
from mien.app.settings import Device, InferenceSettings
from mien.data.contract import Array, DegenerateLandmarks, similarity
from mien.models.manifest import DETECTOR_OUTPUTS, DETECTOR_STRIDES

# (H, W, 3) uint8 RGB -> (N, 15) float32: x, y, width, height, five landmarks (x, y), score; pixels of that image
Network = Callable[[Array], Array]

GRID_PX: Final = 32  # cells of the coarsest grid, of which the sides of an input are multiples
NMS_IOU: Final = 0.3
TOP_K: Final = 5000
SCORE_THRESHOLD: Final = "score_threshold"  # Grids below this optional input compute no boxes.

MERGE_IOU: Final = 0.4
MIN_EYE_DISTANCE_PX: Final = 1.0
SMALL_FACE_PX: Final = 40.0
CLOSE_UP_PX: Final = 160
# Long sides of the first pass, and of the second, which runs if the first found only small faces or none
FIRST_PX: Final = 640
# The first pass of a frame of a stream, in a third of the time, and the size below which its faces are small: it finds
# 98 % of the faces, and their labels are as often right (docs/decisions/0021-streams-search-small-frames.md).
LIVE_PX: Final = 288
LIVE_SMALL_FACE_PX: Final = 27.0
SECOND_PX: Final = 1600
ROTATED_PX: Final = 480
LAST_SHARE: Final = 0.75  # of the side of the first pass: the size of a last one, if none found a face
# Of a GPU: sides of the canvases, numbers of images that run together, and the most pixels of such a batch
_CANVASES_PX: Final = (160, 288, 480, FIRST_PX, 1024, SECOND_PX)
_BATCHES: Final = (1, 8, 32)
_BATCH_PIXELS: Final = 14_000_000
# Upright faces in photos score 0.92 to 0.96, the same faces on their side or upside down 0.6 to 0.92.
SURE_SCORE: Final = 0.92
# Size of the crop for comparing rotations of a face, which fills five eighths of it: they differ most there.
COMPARED_PX: Final = 160
MAX_COMPARED: Final = 8
# A rotated face must score higher: an upside-down beard looks like hair.
ROTATED_MARGIN: Final = 0.01
ROTATED_SCORE: Final = 0.7
MIN_CANVAS_PX: Final = 64  # Smaller images are padded: the coarsest grid has cells of 32 px.
# Long side over short side of an image of which the second pass, whose long side is limited, would see too little
TILED_ASPECT: Final = 3.0
# Part of a tile that the next one shares, and how many times smaller the next level is: a face that is cut at an edge
# is whole in the next tile, or smaller in the next level. The network finds faces from about 1/160 of a tile's side.
_TILE_OVERLAP: Final = 0.2
_LEVEL_RATIO: Final = 4
# Part of a tile's side from which a face is left to the next level; smaller ones are whole in a tile.
_LARGE_SHARE: Final = 0.14
_EDGE_PX: Final = 2
# Of 200 FERPlus faces of 48 px, the network finds 79 % at original size and 98 % enlarged to this size.
TINY_PX: Final = 144
MAX_ENLARGEMENT: Final = 4.0
_CODES: Final = (cv2.ROTATE_90_CLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_COUNTERCLOCKWISE)  # 1, 2 and 3 quarter turns


@dataclass(frozen=True, slots=True, eq=False)
class Detection:
    """One detected face.

    landmarks_px: (5, 2) float32, x then y: image-left eye, image-right eye, nose, image-left mouth corner,
        image-right mouth corner. "Image-left" refers to an upright head: in an upside-down face, this eye is on
        the right.
    score: confidence of the detector, 0 to 1; not comparable between detectors. 1 for a face that was given with
        its landmarks, 0 for a given box in which the detector found none.
    """

    box: Box
    landmarks_px: Array
    score: float

    @property
    def short_side_px(self) -> float:
        """The shorter side of the box."""
        return min(self.box.width, self.box.height)

    def scaled(self, scale_x: float, scale_y: float) -> "Detection":
        """The face in an image that is `scale_x` times as wide and `scale_y` times as high."""
        x, y, width, height = self.box
        landmarks = (self.landmarks_px * np.array([scale_x, scale_y])).astype(np.float32)
        return Detection(Box(x * scale_x, y * scale_y, width * scale_x, height * scale_y), landmarks, self.score)

    def moved(self, right: float, down: float) -> "Detection":
        """The face in an image with so many more pixels at the left and the top."""
        x, y, width, height = self.box
        landmarks = (self.landmarks_px + np.array([right, down])).astype(np.float32)
        return Detection(Box(x + right, y + down, width, height), landmarks, self.score)


class Detector(Protocol):
    """Finds faces; thread-safe."""

    name: str

    def detect(self, image: Array, *, live: bool = False) -> list[Detection]:
        """Find faces in (H, W, 3) uint8 RGB, largest first; empty if there are none.

        live: the image is a frame of a stream, for which speed matters more than a face that the next frame shows, too.
        """
        ...


class NetworkDetector:
    """Detector with one network; thread-safe.

    Attributes:
        sha256: of the verified file.
        threshold: minimum score of a face.
    """

    def __init__(
        self,
        name: str,
        graph: Path | bytes,
        settings: InferenceSettings,
        sha256: str,
        *,
        threshold: float,
        device: Device = "cpu",
    ) -> None:
        """Open a verified graph. Raises: ProviderUnavailable."""
        self.name, self.sha256, self.threshold = name, sha256, threshold
        self._graph, self._settings = graph, settings
        first_px, *larger_px = _CANVASES_PX
        session = self._session(device, 1, first_px)
        self._run, self._canvases = session.run, dict[int, Batcher[list[tuple[Array, ...]]]]()
        optional = {value.name for value in session.inference.get_overridable_initializers()}
        # YuNet's graph does not have this input.
        self._limits = {SCORE_THRESHOLD: np.array(self.threshold, np.float32)} if SCORE_THRESHOLD in optional else {}
        if session.provider != CPU:
            sessions = {first_px: session} | {px: self._session("cuda", 1, px) for px in larger_px}
            self._canvases = {px: self._canvas(px, session) for px, session in sessions.items()}

    def _session(self, device: Device, images: int, px: int) -> Session:
        warm_up = {"input": np.zeros((images, 3, px, px), np.float32)}
        threads = self._settings.threads or 1  # Photos are processed in parallel.
        return open_session(self._graph, device, threads=threads, warm_up=warm_up)

    def _canvas(self, px: int, first: Session) -> Batcher[list[tuple[Array, ...]]]:
        """Runs of images of one size, shared by threads; each image gets its twelve grids, (cells, values)."""
        sizes = [images for images in _BATCHES if images * px**2 <= _BATCH_PIXELS or images == 1]
        batches = FixedBatches(first, lambda images: self._session("cuda", images, px), sizes[1:])

        def infer(blobs: Array) -> list[tuple[Array, ...]]:
            outputs = batches.run(list(DETECTOR_OUTPUTS), {"input": blobs})
            # YuNet's own outputs have all cells of a batch in one row.
            cells = [(px // stride) ** 2 for stride in DETECTOR_STRIDES] * 4
            grids = [grid.reshape(-1, count, grid.shape[-1]) for grid, count in zip(outputs, cells, strict=True)]
            return list(zip(*grids, strict=True))[: len(blobs)]

        return Batcher(infer, max_items=batches.max_batch)

    def detect(self, image: Array, *, live: bool = False) -> list[Detection]:
        """Find faces; see `Detector`."""
        return find_faces(image, self.rows, self._settings, live=live)

    def rows(self, image: Array) -> Array:
        """Run the network once, at the original size of the image.

        Args:
            image: (H, W, 3) uint8, RGB.
        Returns: (N, 15) float32, best first: x, y, width, height, five landmarks (x, y), score.
        """
        bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
        if self._canvases:
            px = next(px for px in self._canvases if px >= max(image.shape[:2]))
            blob = to_blob(bgr, (px, px))
            (grids,) = self._canvases[px](blob)
        else:
            rows, columns = (math.ceil(side / GRID_PX) * GRID_PX for side in image.shape[:2])
            blob = to_blob(bgr, (rows, columns))
            grids = tuple(grid[0] for grid in self._run(list(DETECTOR_OUTPUTS), {"input": blob} | self._limits))
        return decode_grids(grids, width=blob.shape[3], threshold=self.threshold)


def to_blob(image: Array, size: tuple[int, int]) -> Array:
    """Convert (H, W, 3) uint8 BGR to (1, 3, rows, columns) float32, 0 to 255, padded at the right and bottom."""
    height, width = image.shape[:2]
    blob: Array = np.zeros((1, 3, *size), np.float32)
    for channel in range(3):  # Planes stay in the cache: half the time of a whole image.
        blob[0, channel, :height, :width] = cv2.extractChannel(image, channel)
    return blob


def decode_grids(grids: Sequence[Array], *, width: int, threshold: float) -> Array:
    """Convert the network's outputs for one image to faces.

    Args:
        grids: in the order of `DETECTOR_OUTPUTS`, (cells, values), row by row: `cls` and `obj` have 1 value, `bbox` 4,
            `kps` 10.
        width: of the network's input, pixels.
        threshold: minimum score, the geometric mean of class and objectness.
    Returns: (N, 15) float32, best first: x, y, width, height, five landmarks (x, y), score.
    Source: OpenCV 4.14, modules/objdetect/src/face_detect.cpp.
    """
    parts = [np.empty((0, 15), np.float32)]
    for index, stride in enumerate(DETECTOR_STRIDES):
        cls, obj, bbox, kps = grids[index :: len(DETECTOR_STRIDES)]
        likely = np.flatnonzero(cls[:, 0] * obj[:, 0] >= 0.999 * threshold**2)  # the few cells that have scores
        if not len(likely):  # This holds for most grids of most images.
            continue
        scores = np.sqrt(np.clip(cls[likely, 0], 0, 1) * np.clip(obj[likely, 0], 0, 1))
        chosen, scores = likely[scores >= threshold], scores[scores >= threshold]
        columns = width // stride
        origin = np.stack([chosen % columns, chosen // columns], axis=1).astype(np.float32)
        sizes = np.exp(bbox[chosen, 2:]) * stride
        corners = (origin + bbox[chosen, :2]) * stride - sizes / 2
        landmarks = (kps[chosen].reshape(-1, 5, 2) + origin[:, None]) * stride
        fields = [corners, sizes, landmarks.reshape(-1, 10), scores[:, None]]
        parts.append(np.concatenate(fields, axis=1).astype(np.float32))
    rows: Array = np.concatenate(parts)
    if len(rows) == 0:
        return rows
    # With whole pixels, the boxes are those of OpenCV.
    boxes, scores = rows[:, :4].astype(np.int32).tolist(), rows[:, 14].tolist()
    kept = cv2.dnn.NMSBoxes(boxes, scores, threshold, NMS_IOU, top_k=TOP_K)
    return rows[np.asarray(kept, dtype=np.intp).ravel()]


def find_faces(image: Array, network: Network, settings: InferenceSettings, *, live: bool = False) -> list[Detection]:
    """Find faces in (H, W, 3) uint8 RGB, largest first; see `Detector`."""
    faces = _upright(image, network, settings, live=live)
    if settings.detect_rotated and max((face.score for face in faces), default=0.0) < SURE_SCORE:
        faces = _with_rotated(faces, image, network, settings)
    # Faces of the same size have a stable order, too.
    return sorted(faces, key=lambda face: (-face.box.width * face.box.height, face.box.x, face.box.y))


def _same(face: Detection, other: Detection) -> bool:
    return iou(face.box, other.box) >= MERGE_IOU


def is_tiled(width: int, height: int, settings: InferenceSettings) -> bool:
    """Decide if an image of this size is searched at full size, in tiles."""
    longer, shorter = max(width, height), min(width, height)
    is_chosen = {"never": False, "wide": longer >= TILED_ASPECT * shorter, "always": True}[settings.detection_tiles]
    return is_chosen and longer > SECOND_PX


def _in_tiles(image: Array, network: Network) -> list[Detection]:
    """Search the whole image, tiles of it at full size, tiles at a quarter of it, and so on."""
    height, width = image.shape[:2]
    px = SECOND_PX
    whole = [face for side in (CLOSE_UP_PX, FIRST_PX, px) for face in one_pass(image, network, side)]
    in_tiles, level, min_face_px = list[Detection](), image, 0.0
    while max(level.shape[:2]) > px:
        scale = (width / level.shape[1], height / level.shape[0])
        for top in _tile_starts(level.shape[0], px):
            for left in _tile_starts(level.shape[1], px):
                tile = level[top : top + px, left : left + px]
                found = (face for face in one_pass(tile, network, px) if _is_whole(face, tile, left, top, level))
                moved = (face.moved(left, top).scaled(*scale) for face in found)
                in_tiles += [face for face in moved if face.short_side_px >= min_face_px]
        min_face_px = _LARGE_SHARE * px * scale[0]
        level = _resized(level, max(level.shape[:2]) // _LEVEL_RATIO)
    # A cheek or a mouth of a large face can look like a face in a tile.
    return merge(whole + [face for face in in_tiles if not any(_is_part(face, other) for other in whole)])


def _is_part(face: Detection, larger: Detection) -> bool:
    """Find out if the center of a face is in another one with a higher score."""
    x, y, width, height = face.box
    left, top, larger_width, larger_height = larger.box
    inside = 0 < x + width / 2 - left < larger_width and 0 < y + height / 2 - top < larger_height
    return inside and larger.score > face.score


def _tile_starts(length: int, px: int) -> list[int]:
    count = math.ceil((length - px) / (px * (1 - _TILE_OVERLAP))) + 1 if length > px else 1
    return [round(start) for start in np.linspace(0, max(0, length - px), count)]


def _is_whole(face: Detection, tile: Array, left: int, top: int, image: Array) -> bool:
    """Find out if a face touches no edge of its tile, except where the image ends."""
    x, y, width, height = face.box
    right, bottom = left + tile.shape[1], top + tile.shape[0]
    return (
        (x > _EDGE_PX or left == 0)
        and (y > _EDGE_PX or top == 0)
        and (x + width < tile.shape[1] - _EDGE_PX or right == image.shape[1])
        and (y + height < tile.shape[0] - _EDGE_PX or bottom == image.shape[0])
    )


def _upright(image: Array, network: Network, settings: InferenceSettings, *, live: bool = False) -> list[Detection]:
    if is_tiled(image.shape[1], image.shape[0], settings):
        return _in_tiles(image, network)
    first_px, small_px = (LIVE_PX, LIVE_SMALL_FACE_PX) if live else (FIRST_PX, SMALL_FACE_PX)
    faces = one_pass(image, network, first_px)
    long_side = max(image.shape[:2])
    scale = min(1.0, FIRST_PX / long_side)
    if min((face.short_side_px for face in faces), default=0.0) * scale >= small_px:
        return faces
    # A pass of an image that is not larger than its size has the pixels of the first.
    passes = ((CLOSE_UP_PX, long_side > CLOSE_UP_PX), (SECOND_PX, long_side > first_px))
    faces = merge(faces + [face for px, differs in passes if differs for face in one_pass(image, network, px)])
    # Networks miss some large, clear faces at a few sizes only.
    return faces or one_pass(image, network, round(LAST_SHARE * min(max(long_side, TINY_PX), first_px)))


def one_pass(image: Array, network: Network, long_side_px: int) -> list[Detection]:
    """Run the network on the image reduced to a long side of at most `long_side_px`; faces are in original pixels."""
    height, width = image.shape[:2]
    small = _resized(image, long_side_px)
    below, right = (max(0, MIN_CANVAS_PX - side) for side in small.shape[:2])
    rows = network(cv2.copyMakeBorder(small, 0, below, 0, right, cv2.BORDER_CONSTANT) if right or below else small)
    faces = [
        Detection(Box(*row[:4].tolist()), row[4:14].reshape(5, 2), float(row[14])).scaled(
            width / small.shape[1], height / small.shape[0]
        )
        for row in rows
    ]
    return [face for face in faces if plausible(face, width=width, height=height)]


def _resized(image: Array, long_side_px: int) -> Array:
    """Reduce to a long side of at most `long_side_px`, or enlarge tiny images up to four times."""
    height, width = image.shape[:2]
    long_side = max(height, width)
    scale = min(long_side_px / long_side, max(1.0, min(MAX_ENLARGEMENT, TINY_PX / long_side)))
    if scale == 1.0:
        return image
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(_halved(image, size), size, interpolation=cv2.INTER_AREA if scale < 1.0 else cv2.INTER_LINEAR)


def _halved(image: Array, size: tuple[int, int]) -> Array:
    """Halve an image, by means of 2x2 pixels, while it stays at least `size` (width, height).

    OpenCV reduces by whole factors twelve times as fast as by others, and the rest has a quarter of the pixels.
    """
    height, width = image.shape[:2]
    while width % 2 == height % 2 == 0 and width >= 2 * size[0] and height >= 2 * size[1]:
        width, height = width // 2, height // 2
        image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA)
    return image


def merge(faces: list[Detection]) -> list[Detection]:
    """Greedy non-maximum suppression over all passes."""
    kept: list[Detection] = []
    for face in sorted(faces, key=lambda face: -face.score):
        if not any(_same(face, other) for other in kept):
            kept.append(face)
    return kept


def _with_rotated(
    upright: list[Detection], image: Array, network: Network, settings: InferenceSettings
) -> list[Detection]:
    """Estimate the rotation of the image, add the faces at this rotation, and remove upright ones that it fits better.

    The detection score alone is not enough: it depends on face size, and upside-down faces are detected too.
    """
    compared = dict[Box, Array]()

    def scores_of(face: Detection) -> Array:
        if face.box not in compared:
            compared[face.box] = rotation_scores(image, network, face)
        return compared[face.box]

    best = merge(upright)[:MAX_COMPARED]
    if best and all(scores_of(face).argmax() == 0 for face in best):
        return upright
    candidates = merge(upright + _in_small_copies(image, network))[:MAX_COMPARED]
    scores = np.array([scores_of(face) for face in candidates]).reshape(-1, 4)
    turns = int(np.bincount(scores.argmax(axis=1), scores.max(axis=1), minlength=4).argmax())  # Each face votes.
    if turns == 0:
        return upright

    def is_rotated(face: Detection) -> bool:
        return bool(scores_of(face)[turns] > scores_of(face)[0])

    height, width = image.shape[:2]
    faces = _upright(_rotated(image, turns), network, settings)
    rotated = [rotate_back(face, turns, width=width, height=height) for face in faces if face.score >= ROTATED_SCORE]
    kept = [face for face in upright if face.score >= SURE_SCORE or not is_rotated(face)]
    return merge(kept + [face for face in rotated if not any(_same(face, other) for other in kept) or is_rotated(face)])


def _in_small_copies(image: Array, network: Network) -> list[Detection]:
    """Faces in small copies rotated by 90, 180 and 270 degrees, in pixels of the image."""
    height, width = image.shape[:2]
    small = _resized(image, ROTATED_PX)
    scale_x, scale_y = width / small.shape[1], height / small.shape[0]
    sizes = (ROTATED_PX, CLOSE_UP_PX) if max(small.shape[:2]) > CLOSE_UP_PX else (ROTATED_PX,)
    return [
        rotate_back(face, turns, width=small.shape[1], height=small.shape[0]).scaled(scale_x, scale_y)
        for turns in (1, 2, 3)
        for px in sizes
        for face in one_pass(_rotated(small, turns), network, px)
    ]


def rotation_scores(image: Array, network: Network, face: Detection) -> Array:
    """Scores (4,) of one face rotated by 0, 90, 180 and 270 degrees, minus the margin if rotated."""
    around = _surroundings(image, face)
    center = COMPARED_PX / 2
    scores = np.zeros(4)
    for turns in range(4):
        rows = network(_rotated(around, turns))
        near = np.abs(rows[:, :2] + rows[:, 2:4] / 2 - center).max(axis=1, initial=0.0) < COMPARED_PX / 4
        scores[turns] = rows[near, 14].max(initial=0.0)
    return scores - ROTATED_MARGIN * (np.arange(4) > 0)


def _surroundings(image: Array, face: Detection) -> Array:
    """Square of 1.6 times the side of the face, resized to `COMPARED_PX`; black outside the image."""
    x, y, width, height = face.box
    half = max(1, round(0.8 * max(width, height)))
    left, top = round(x + width / 2) - half, round(y + height / 2) - half
    right, bottom = left + 2 * half - image.shape[1], top + 2 * half - image.shape[0]
    cut = image[max(0, top) : top + 2 * half, max(0, left) : left + 2 * half]
    edges = (max(0, -top), max(0, bottom), max(0, -left), max(0, right))
    square = cv2.copyMakeBorder(cut, *edges, cv2.BORDER_CONSTANT, value=(0, 0, 0))
    interpolation = cv2.INTER_AREA if 2 * half > COMPARED_PX else cv2.INTER_LINEAR
    return cv2.resize(square, (COMPARED_PX, COMPARED_PX), interpolation=interpolation)


def _rotated(image: Array, turns: int) -> Array:
    """Rotate clockwise by `turns` quarter turns."""
    return cv2.rotate(image, _CODES[turns - 1]) if turns else image


def rotate_back(face: Detection, turns: int, *, width: int, height: int) -> Detection:
    """Undo a clockwise rotation by `turns` quarter turns; `width` and `height` are those before it."""
    left, top, box_width, box_height = face.box
    corners = np.array([[left, top], [left + box_width, top + box_height]])
    x, y = np.vstack([corners, face.landmarks_px]).T
    points = np.stack([(x, y), (y, height - x), (width - x, height - y), (width - y, x)][turns], axis=-1)
    left, top = points[:2].min(axis=0)
    right, bottom = points[:2].max(axis=0)
    box = Box(float(left), float(top), float(right - left), float(bottom - top))
    return Detection(box, points[2:].astype(np.float32), face.score)


def plausible(face: Detection, *, width: int, height: int) -> bool:
    """Decide if a detection can be a face in an image of this size.

    On images unlike its training data, a network can return boxes of 1e12 px with a score of 1.0.
    """
    eyes = face.landmarks_px[1].astype(np.float64) - face.landmarks_px[0]
    return bool(np.hypot(*eyes) >= MIN_EYE_DISTANCE_PX) and not problem_of(face, width=width, height=height)


def problem_of(face: Box | Detection, *, width: int, height: int) -> str:
    """Why a face cannot be one of an image of this size; empty if it can."""
    if isinstance(face, Detection):
        try:
            similarity(face.landmarks_px)
        except DegenerateLandmarks as error:
            return str(error)
        face = face.box
    if not all(map(math.isfinite, face)):
        problem = "has a value that is not finite; expected x, y, width and height in pixels"
    elif min(face.width, face.height) < 1:
        problem = "is less than a pixel wide or high; expected x, y, width and height in pixels"
    elif min(face.x + face.width, width) <= max(face.x, 0) or min(face.y + face.height, height) <= max(face.y, 0):
        problem = f"is outside the image of {width}x{height} px"
    elif max(face.width, face.height) > 3 * max(width, height):
        problem = f"is more than three times as large as the image of {width}x{height} px"
    else:
        return ""
    return f"{', '.join(f'{value:g}' for value in face)} {problem}"


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes, 0 to 1."""
    width = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
    height = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    return common / (a.width * a.height + b.width * b.height - common)
