"""Training batches: crops cached in a memory-mapped file, shuffled by seed, augmented in worker processes.

Order and augmentation depend only on seed, epoch, face, and how often the face was drawn before in this epoch, so a
resumed run gets the same batches as an uninterrupted one.
"""

import hashlib
import logging
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mien.data.atomic import atomic_file
from mien.data.augment import Augment
from mien.data.contract import CROP_PX, Array, contract_id
from mien.data.folds import folds_of
from mien.data.readers.base import Sample, index_sha256, open_reader
from mien.data.split import hold_out
from mien.data.tree import DatasetError
from mien.models.backbones import Color
from mien.training.config import DataSource, Recipe, Sampler
from mien.training.loop.checkpoint import no_space
from mien.training.loop.parallel import World

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Faces:
    """One split in memory-mapped form."""

    crops: Array  # (N, 112, 112, C) uint8; C is 1 for luminance, 3 for RGB
    targets: Array  # (N, K) float32, rows sum to 1, or are 0 without a label; K is 7, or 8 with contempt
    labels: Array  # (N,) int64
    keys: tuple[str, ...]
    index_sha256: str

    def __len__(self) -> int:
        return len(self.keys)


def load_faces(source: DataSource, *, color: Color, cache_dir: Path) -> Faces:
    """Read one split; decoded crops are cached until the split or the crop contract changes.

    The target `teacher` uses all samples of the reader; those without one of the labels get label -1. All of its
    targets are zeros.

    Raises: DatasetError, if the set is missing or damaged; RecipeError, without a root.
    """
    reader = open_reader(source.kind, source.resolved_root(), **source.options)
    wanted = source.target != "teacher"
    all_samples = [sample for sample in reader.samples(source.split) if not wanted or sample.label in reader.labels]
    kept = hold_out({sample.key: sample.label for sample in all_samples}, source.fraction)
    samples = [sample for sample in all_samples if sample.key in kept]
    if source.fold is not None and samples:
        fold = source.fold
        is_in_fold = folds_of(reader, samples, folds=fold.of, group_by=fold.group_by) == fold.index
        samples = [samples[place] for place in np.flatnonzero(is_in_fold == (fold.take == "fold"))]
    if not all_samples:
        hint = ". Choose another split, or target: teacher for faces without labels." if wanted else ""
        raise DatasetError(f"{source.kind}: no {'labeled ' * wanted}faces of split {source.split!r}{hint}")
    if not samples:
        raise DatasetError(
            f"{source.kind}: no faces of split {source.split!r} are left of {len(all_samples)}: "
            f"fraction {source.fraction:g}, fold {source.fold}. Increase the fraction, or add faces."
        )
    index = index_sha256(reader, source.split)
    if source.fold is not None:  # its faces also depend on groups, such as persons, which are not in the index
        index = hashlib.sha256("\n".join([index, *(sample.key for sample in samples)]).encode()).hexdigest()
    number_of = {label: number for number, label in enumerate(reader.labels)}
    labels = np.array([number_of.get(str(sample.label), -1) for sample in samples], dtype=np.int64)
    part = "" if source.fraction == 1 else f" {source.fraction:g}"
    part += "" if source.fold is None else f" {source.fold.model_dump_json()}"
    name = hashlib.sha256(f"{index} {contract_id()} {color} {len(samples)}{part}".encode()).hexdigest()[:16]
    path = cache_dir / f"{source.kind}-{source.split}-{name}.npy"
    if not path.exists():
        crops = (reader.crop(sample) for sample in samples)
        if color == "luminance":
            crops = (cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)[..., None] for crop in crops)
        _write_cache(path, crops, len(samples), channels=1 if color == "luminance" else 3)
    targets = np.stack([_target(sample, source, reader.labels) for sample in samples])
    keys = tuple(f"{source.kind}/{sample.key}" for sample in samples)
    return Faces(np.load(path, mmap_mode="r"), targets, labels, keys, index)


def _target(sample: Sample, source: DataSource, labels: tuple[str, ...]) -> Array:
    """Class shares, (K,) float32. Raises: DatasetError, unless vote shares are one per label and sum to 1."""
    if source.target == "teacher" or sample.label not in labels:  # cross entropy with zeros is zero
        return np.zeros(len(labels), dtype=np.float32)
    if source.target != "votes" or sample.distribution is None:
        target: Array = np.eye(len(labels), dtype=np.float32)[labels.index(sample.label)]
        return target
    shares = np.asarray(sample.distribution, dtype=np.float32)
    if shares.shape != (len(labels),) or not (shares >= 0).all() or abs(float(shares.sum()) - 1) > 1e-3:
        raise DatasetError(
            f"{source.kind}: {sample.key} has vote shares {shares.tolist()}, expected {len(labels)} that sum to 1, in "
            f"the order {', '.join(labels)}. Use target: label."
        )
    return shares


def _write_cache(path: Path, crops: Iterator[Array], count: int, *, channels: int) -> None:
    """Write crops as one .npy file. Raises: DatasetError, also if the disk is full."""
    logger.info("decoding %d faces into %s", count, path)
    shape = (count, CROP_PX, CROP_PX, channels)
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    # not written through a memory map: on a full disk, that ends the process with a bus error
    with cache_file(path, "decoded faces", size=math.prod(shape)) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for crop in crops:
            file.write(np.ascontiguousarray(crop).tobytes())


@contextmanager
def cache_file(path: Path, what: str, *, size: int) -> Iterator[IO[bytes]]:
    """Open a file of about `size` bytes that appears in the cache if the block succeeds. Raises: DatasetError."""
    try:
        with atomic_file(path) as file:
            yield file
    except OSError as error:
        why = (no_space(path.parent, size) if path.parent.is_dir() else "") or error.strerror
        raise DatasetError(f"{path}: cannot write {what} ({why}). Choose another data.cache_dir.") from error


class JoinedFaces:
    """Concatenation of several splits without copying pixels."""

    def __init__(self, parts: list[Faces]) -> None:
        """Join `parts`; a class that a part does not know has no share in it."""
        self.parts = parts
        classes = max(part.targets.shape[1] for part in parts)
        self.starts = np.cumsum([0, *(len(part) for part in parts)])
        missing = [(part.targets, classes - part.targets.shape[1]) for part in parts]
        self.targets = np.concatenate([np.pad(targets, ((0, 0), (0, count))) for targets, count in missing])
        self.labels = np.concatenate([part.labels for part in parts])
        # of the samplers: a label that a source with target `teacher` has is not used
        self.drawn_labels = np.where(self.targets.any(axis=1), self.labels, -1)
        self.keys = tuple(key for part in parts for key in part.keys)
        self.teacher_logits: Array | None = None  # (N, K) float32, if the teachers see fixed views

    def __len__(self) -> int:
        return int(self.starts[-1])

    def crop(self, index: int) -> Array:
        """One crop, (112, 112, C) uint8."""
        part = int(np.searchsorted(self.starts, index, side="right")) - 1
        return np.asarray(self.parts[part].crops[index - self.starts[part]])


class FaceBatch(NamedTuple):
    """A batch of B faces."""

    crops: Tensor  # (B, 112, 112, C) uint8
    targets: Tensor  # (B, K) float32
    teacher_logits: Tensor | None = None  # (B, K) float32, if the teachers see fixed views


class FaceBatches(Dataset[FaceBatch]):
    """Map-style dataset of a process's part of the batches of one epoch; item b depends only on (seed, epoch, b)."""

    def __init__(self, faces: JoinedFaces, recipe: Recipe, order: Array, *, epoch: int, world: World) -> None:
        """Load the faces `order`, (N,) indices from `epoch_order`."""
        self.faces, self.recipe, self.order, self.epoch, self.world = faces, recipe, order, epoch, world
        draws: Counter[int] = Counter()
        self.repeats = np.zeros(len(self.order), np.int64)  # how often a face was drawn before, in this epoch
        for place, face in enumerate(self.order.tolist()):
            self.repeats[place] = draws[face]
            draws[face] += 1
        self._augment: Augment | None = None

    def __len__(self) -> int:
        return len(self.order) // self.recipe.batch_size

    def __getitem__(self, number: int) -> FaceBatch:
        if self._augment is None:  # created in the worker process
            cv2.setNumThreads(0)
            self._augment = Augment(self.recipe.augment)
        size = self.recipe.batch_size
        places = self.world.shard(np.arange(number * size, (number + 1) * size))
        chosen, crops = self.order[places], []
        for face, repeat in zip(chosen.tolist(), self.repeats[places].tolist(), strict=True):
            seed = np.random.SeedSequence([self.recipe.seed, self.epoch, face, repeat]).generate_state(1)[0]
            crops.append(self._augment(self.faces.crop(face), seed=int(seed)))
        logits = self.faces.teacher_logits
        return FaceBatch(
            torch.from_numpy(np.stack(crops)),
            torch.from_numpy(self.faces.targets[chosen]),
            None if logits is None else torch.from_numpy(logits[chosen]),
        )


def epoch_order(labels: Array, *, seed: int, epoch: int, sampler: Sampler = "instance") -> Array:
    """Order of the faces in an epoch, (N,) indices; equal seeds and epochs give equal orders.

    Args:
        labels: (N,) class indices; -1 for unlabeled faces, which all samplers draw as often as `instance` does.
        seed, epoch: seed of the random generator.
        sampler: `instance` visits every face once. `class` and `square_root` draw with replacement, with equal
            probability per class or proportional to the square root of its size. Source: Kang et al. 2020, section 4.1.
    """
    draw = np.random.default_rng([seed, epoch])
    if sampler == "instance":
        return draw.permutation(len(labels))
    classes, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    share = counts.astype(np.float64) ** (0.0 if sampler == "class" else 0.5)
    known = classes >= 0
    share[known] *= counts[known].sum() / share[known].sum()
    share[~known] = counts[~known]
    return draw.choice(len(labels), size=len(labels), p=(share / counts)[place] / len(labels))
