"""Training images of a detector: found, split by hash, labeled once by the teacher, and cached; and hard negatives."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final, Literal

import cv2
import numpy as np
from rich.progress import track

from mien.data.contract import Array
from mien.data.tree import DatasetError
from mien.models.detector.decode import detect_rows
from mien.models.detector.manifest import load_detector
from mien.models.manifest import sha256_of
from mien.training.detector.config import DetectorData, ImageFolder
from mien.training.detector.teacher import VERSION, Teacher, box_iou
from mien.training.evaluate import open_graph
from mien.training.faces import cache_file

logger = logging.getLogger("mien.training")
Split = Literal["train", "valid", "test"]
_SUFFIXES: Final = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
_HELD_OUT: Final = 10  # one file in ten: half of them for validation, half for the test


@dataclass(frozen=True, slots=True, eq=False)
class LabeledImage:
    """One image and its labels.

    faces: (N, 16) float32, columns `mien.training.detector.teacher.FIELDS`, in pixels of the image.
    """

    folder: str
    path: Path
    faces: Array
    in_memory: bool = False

    def read(self) -> Array:
        """(H, W, 3) uint8 BGR. Raises: DatasetError."""
        return _kept(self.path) if self.in_memory else read_bgr(self.path)


@dataclass(frozen=True, slots=True)
class LabeledImages:
    """One split of all folders."""

    items: tuple[LabeledImage, ...]
    index_sha256: str

    def __len__(self) -> int:
        return len(self.items)


def read_bgr(path: Path) -> Array:
    """(H, W, 3) uint8 BGR. Raises: DatasetError, for a file that is not an image."""
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise DatasetError(f"{path}: not an image that OpenCV can read; remove or repair it")
    return image


_kept = cache(read_bgr)  # of a process


def load_images(data: DetectorData, split: Split) -> LabeledImages:
    """Find and label the images of a split. Raises: DatasetError, RecipeError."""
    teacher_path = data.resolved_teacher()
    teacher_sha256 = sha256_of(teacher_path)
    items: list[LabeledImage] = []
    digest = hashlib.sha256()
    for folder in data.folders:
        files = _files(folder, split)
        root = folder.resolved_root()
        index = "".join(f"{path.relative_to(root).as_posix()} {sha256}\n" for path, sha256 in files)
        digest.update(index.encode())
        key = hashlib.sha256(f"{VERSION} {teacher_sha256}\n{index}".encode()).hexdigest()[:16]
        labels = _labels(folder, files, data.cache_dir, key=key, teacher_path=teacher_path)
        items += [
            LabeledImage(folder.name, path, faces, data.in_memory)
            for (path, _), faces in zip(files, labels, strict=True)
        ]
    return LabeledImages(tuple(items), digest.hexdigest())


def _files(folder: ImageFolder, split: Split) -> list[tuple[Path, str]]:
    """Files of a split and their SHA-256, sorted by it."""
    root = folder.resolved_root()
    hashed = sorted((sha256_of(path), path) for path in root.rglob("*") if path.suffix.lower() in _SUFFIXES)
    chosen = {sha256: path for sha256, path in hashed if _split(sha256) == split}
    if not chosen:
        raise DatasetError(f"{root}: no images for split {split}; expected {', '.join(sorted(_SUFFIXES))} files")
    share = 1 if split == "train" else 2 * _HELD_OUT
    limit = None if folder.limit is None else max(1, folder.limit // share)
    return [(path, sha256) for sha256, path in chosen.items()][:limit]


def _split(sha256: str) -> Split:
    if int(sha256[:8], 16) % _HELD_OUT:
        return "train"
    return "valid" if int(sha256[8], 16) % 2 else "test"


def _labels(
    folder: ImageFolder, files: list[tuple[Path, str]], cache_dir: Path, *, key: str, teacher_path: Path
) -> list[Array]:
    """Labels of each file, from the cache if it has them."""

    def label() -> dict[str, Array]:
        teacher = Teacher(teacher_path)
        named = track(files, description=f"labeling {folder.name}", disable=len(files) < 200)
        labels = [teacher.faces(read_bgr(path)) for path, _ in named]
        return {"faces": np.concatenate(labels), "counts": np.array([len(rows) for rows in labels])}

    stored = _cached(cache_dir / f"faces_{folder.name.replace('/', '_')}_{key}.npz", label)
    logger.info("%s: %d faces in %d images", folder.name, len(stored["faces"]), len(files))
    return np.split(stored["faces"], np.cumsum(stored["counts"])[:-1])


def _cached(path: Path, compute: Callable[[], dict[str, Array]]) -> dict[str, Array]:
    """Read arrays of the cache, or compute and write them. Raises: DatasetError, if the disk is full."""
    if not path.is_file():
        arrays = compute()
        with cache_file(path, path.stem, size=sum(array.nbytes for array in arrays.values())) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]  # numpy's stub takes them for allow_pickle
    with np.load(path) as stored:
        return dict(stored)


_SCALES: Final = (0.5, 1.0, 2.0)
_MAX_SIDE_PX: Final = 896
_MIN_SCORE: Final = 0.5
_MAX_IOU: Final = 0.1  # with a face, or with what may be one


def false_positives(artifact: Path, images: LabeledImages, cache_dir: Path) -> list[tuple[LabeledImage, Array]]:
    """Images and a false positive (1, 15) in each, at three scales; an image can occur several times.

    Raises: ArtifactError, DatasetError.
    """
    graph = load_detector(artifact).graph
    labels = b"".join(item.faces.tobytes() for item in images.items)
    key = hashlib.sha256(f"{graph.sha256} {images.index_sha256}".encode() + labels).hexdigest()[:16]

    def search() -> dict[str, Array]:
        detect = partial(detect_rows, open_graph(artifact / graph.file, threads=1).run, threshold=_MIN_SCORE)
        numbers: list[int] = []
        found = [np.empty((0, 15), np.float32)]
        for number, item in enumerate(track(images.items, description="hard negatives", disable=len(images) < 200)):
            image = read_bgr(item.path)
            for scale in _SCALES:
                if scale * max(image.shape) <= _MAX_SIDE_PX:
                    rows = detect(cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA))
                    rows[:, :14] /= scale
                    found.append(rows[~(box_iou(rows[:, :4], item.faces[:, :4]) > _MAX_IOU).any(axis=1)])
                    numbers += [number] * len(found[-1])
        return {"numbers": np.array(numbers, np.int64), "rows": np.concatenate(found)}

    stored = _cached(cache_dir / f"false_{artifact.name}_{key}.npz", search)
    return [(images.items[number], row[None]) for number, row in zip(stored["numbers"], stored["rows"], strict=True)]
