"""Faces of splits, for training and evaluation alike, and the batches of a training.

`read_split` decodes the faces of one split, once per cache folder; `read_faces` joins those of a recipe and checks
them; `FaceBatches` shuffles and augments them in worker processes, and `mix` mixes a batch. Order, augmentation and
mixing depend only on the seed, so a resumed run gets the same batches as an uninterrupted one.
"""

import hashlib
import logging
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
import torch
from platformdirs import user_cache_path
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset
from torchvision.transforms import v2

from mien.data.atomic import atomic_file
from mien.data.augment import Augment
from mien.data.contract import CROP_PX, LABELS, TEMPLATE_PX, Array, contract_id
from mien.data.errors import DatasetError
from mien.data.folds import folds_of
from mien.data.quality import Quality, measure
from mien.data.readers.base import Reader, Sample, hold_out, index_sha256, open_reader
from mien.models.backbones import Color
from mien.training.config import DataSource, MixConfig, Recipe, RecipeError

logger = logging.getLogger(__name__)
HASHES_DIR: Final = user_cache_path("mien") / "data"  # hashes of files, where no other cache is given


@dataclass(frozen=True, eq=False)
class Split:
    """One split, sorted by key.

    Attributes:
        crops: (N, 112, 112, C) uint8; C is 1 for luminance, 3 for RGB; a memory map with a cache folder.
        labels: (N,) int64, indices of `classes`; -1 for a face without one of them.
        targets: (N, K) float32 for the loss, rows sum to 1, or are 0 without a label.
        votes: (N, K) vote shares, or None if the set has none.
        classes: names of the K classes.
        index_sha256: hash of the data, see `index_sha256`.
    """

    kind: str
    name: str
    crops: Array
    labels: Array
    targets: Array
    votes: Array | None
    classes: tuple[str, ...]
    keys: tuple[str, ...]
    index_sha256: str

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, chosen: Array) -> "Split":
        """Some faces: (M,) indices, or (N,) bool."""
        chosen = np.arange(len(self))[chosen]
        return replace(
            self,
            crops=self.crops[chosen],
            labels=self.labels[chosen],
            targets=self.targets[chosen],
            votes=None if self.votes is None else self.votes[chosen],
            keys=tuple(self.keys[index] for index in chosen),
        )

    def sample(self, count: int) -> "Split":
        """At most `count` random faces, the same ones each time."""
        chosen = np.random.default_rng(0).choice(len(self), min(count, len(self)), replace=False)
        return self[np.sort(chosen)] if count < len(self) else self

    def changed_since(self, trained_with: Mapping[str, str]) -> str:
        """Warning if a training with these index hashes by kind/split used other data as this split, or ""."""
        name = f"{self.kind}/{self.name}"
        used = any(known.split(" ")[0] == name for known in trained_with)
        if not used or self.index_sha256 in trained_with.values():
            return ""
        return (
            f"{self.kind} {self.name} changed since the training, or has other options, so it may contain faces of "
            "the training."
        )

    @cached_property
    def quality(self) -> list[Quality]:
        """Quality of each crop, as if the landmarks of the faces were those of the template."""
        return [measure(np.asarray(crop), np.array(TEMPLATE_PX)) for crop in self.crops]

    @property
    def title(self) -> str:
        return f"{self.kind}, {self.name} split, {len(self):,} faces"


class JoinedCrops(ConcatDataset[Array]):
    """The crops of several splits, in order, without copying them."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the file of a memory map instead of its pixels, for spawned workers."""
        parts: list[Any] = self.datasets
        return _joined, ([part.filename if isinstance(part, np.memmap) else part for part in parts],)


def _joined(parts: Sequence[Any]) -> JoinedCrops:
    return JoinedCrops([np.load(part, mmap_mode="r") if isinstance(part, Path) else part for part in parts])


def with_classes(split: Split, classes: tuple[str, ...], *, of: str) -> Split:
    """A split with labels as indices of other classes. Raises: DatasetError, if a class of its own is missing.

    Args:
        of: name of the network with these classes.
    """
    if missing := [name for name in split.classes if name not in classes]:
        common = ",".join(name for name in split.classes if name in classes)
        advice = f"Use the option classes={common}." if common else "They have no class in common."
        raise DatasetError(f"{split.kind}: {split.name} has {', '.join(missing)}, {of} does not. {advice}")
    index = np.array([*map(classes.index, split.classes), -1])
    votes = None if split.votes is None else in_order(split.votes, split.classes, classes)
    targets = in_order(split.targets, split.classes, classes)
    return replace(split, labels=index[split.labels], targets=targets, votes=votes, classes=classes)


def join(parts: Sequence[Split]) -> Split:
    """Join splits to train on; a class that one does not know has no share in it. Raises: DatasetError, see above."""
    classes = max((part.classes for part in parts), key=len) or LABELS
    parts = [with_classes(part, classes, of="another set") for part in parts]
    labels, targets = (np.concatenate([getattr(part, name) for part in parts]) for name in ("labels", "targets"))
    votes = [part.votes for part in parts if part.votes is not None]
    joined: list[Any] = [part.crops for part in parts]
    crops: Any = JoinedCrops(joined)
    return replace(
        parts[0],
        crops=crops,
        labels=labels,
        targets=targets,
        votes=np.concatenate(votes) if len(votes) == len(parts) else None,
        keys=tuple(key for part in parts for key in part.keys),
        index_sha256=" ".join(part.index_sha256 for part in parts),
    )


def in_order(shares: Array, classes: Sequence[str], wanted: Sequence[str]) -> Array:
    """Columns (N, K) of classes in the order of others, (N, L); zeros for a class that is not among them."""
    columns = np.zeros((len(shares), len(wanted)), shares.dtype)
    columns[:, [wanted.index(name) for name in classes]] = shares
    return columns


def read_voted(source: DataSource, classes: tuple[str, ...]) -> Split | None:
    """Read the faces of a split with votes for these classes, also those without a majority; None if it has none.

    Their `votes` are numbers of raters, and they have no labels. Raises: DatasetError.
    """
    reader = open_reader(source.kind, source.resolved_root(), **source.options)
    voted = reader.voted(source.split)
    if not voted or reader.labels != classes:
        return None
    votes = np.array([of_sample for _, of_sample in voted])
    crops, keys = np.stack([reader.crop(sample) for sample, _ in voted]), tuple(sample.key for sample, _ in voted)
    nothing = np.zeros(votes.shape, np.float32)
    return Split(source.kind, source.split, crops, np.full(len(keys), -1), nothing, votes, classes, keys, "")


def read_split(
    source: DataSource,
    *,
    color: Color = "RGB",
    cache_dir: Path | None = None,
    classes: tuple[str, ...] | None = None,
    of: str = "the network",
) -> Split:
    """Read and decode one split.

    The target `teacher` uses all samples of the reader, without classes; others those with one of its labels.

    Args:
        classes: those of the network named `of`, by default those of the set.
        cache_dir: decoded crops are cached there until the split or the crop contract changes.
    Raises: DatasetError, if the set is missing or damaged; RecipeError, without a root.
    """
    kind, name = source.kind, source.split
    reader = open_reader(kind, source.resolved_root(), **source.options)
    reader.cache_dir = cache_dir or HASHES_DIR
    samples, index = reader.samples(name), index_sha256(reader, name)
    if source.target != "teacher":
        samples = [sample for sample in samples if sample.label in reader.labels]
    if source.fraction < 1:
        kept = hold_out(samples, source.fraction)
        samples = [sample for sample in samples if sample.key in kept]
    if source.fold is not None:
        fold = source.fold
        is_in_fold = folds_of(reader, samples, folds=fold.of, group_by=fold.group_by) == fold.index
        samples = [samples[number] for number in np.flatnonzero(is_in_fold == (fold.take == "fold"))]
        index = _sha256(index, *(sample.key for sample in samples))  # The index has no groups, such as persons.
    if not samples:
        raise DatasetError(
            f"{kind}: split {name!r} has no faces labeled {', '.join(reader.labels)} in the fraction "
            f"{source.fraction:g}. Choose another split or fraction, or target: teacher for faces without labels."
        )
    labels = () if source.target == "teacher" else reader.labels
    number_of = {label: number for number, label in enumerate(labels)}
    numbers = np.array([number_of.get(str(sample.label), -1) for sample in samples])
    targets = np.eye(len(labels) + 1, len(labels), dtype=np.float32)[numbers]  # zeros without a label
    shares = [sample.distribution for sample in samples] if labels else [None]
    if source.target == "votes":
        rows = [row if share is None else share for row, share in zip(targets, shares, strict=True)]
        targets = np.array(rows, np.float32)
    read = Split(
        kind=kind,
        name=name,
        crops=_decoded(reader, samples, color, index, cache_dir),
        labels=numbers,
        targets=targets,
        votes=None if None in shares else np.array(shares, np.float64),
        classes=labels,
        keys=tuple(f"{kind}/{sample.key}" for sample in samples),
        index_sha256=index,
    )
    return read if classes is None else with_classes(read, classes, of=of)


def _sha256(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def _decoded(reader: Reader, samples: Sequence[Sample], color: Color, index: str, cache_dir: Path | None) -> Array:
    """Crops (N, 112, 112, C) uint8, decoded on all cores; a memory map with a cache folder.

    Raises: DatasetError, also if the disk is full.
    """

    def crop(sample: Sample) -> Array:
        face = reader.crop(sample)
        return cv2.cvtColor(face, cv2.COLOR_RGB2GRAY)[..., None] if color == "luminance" else face

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # OpenCV releases Python's lock.
        if cache_dir is None:
            return np.stack([*pool.map(crop, samples)])
        name = _sha256(index, contract_id(), color, *(sample.key for sample in samples))[:16]
        path = cache_dir / f"{reader.kind}-{samples[0].split}-{name}.npy"
        shape = (len(samples), CROP_PX, CROP_PX, 1 if color == "luminance" else 3)
        if not path.exists():
            logger.info("decoding %d faces into %s", len(samples), path)
            # A memory map would end the process with a bus error on a full disk.
            try:
                with atomic_file(path) as file:
                    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
                    np.lib.format.write_array_header_1_0(file, header)
                    for face in pool.map(crop, samples):
                        file.write(np.ascontiguousarray(face).tobytes())
            except OSError as error:
                raise DatasetError(
                    f"{path}: cannot write decoded faces, {math.prod(shape) / 1e6:,.0f} MB ({error.strerror}). Choose "
                    "another data.cache_dir."
                ) from error
    crops: Array = np.load(path, mmap_mode="r")
    return crops


def read_faces(recipe: Recipe) -> tuple[Split, Split | None, dict[str, Any]]:
    """Read the faces of a recipe to train on and to validate on.

    Returns: faces of all training sources, of `data.valid` if there is one, and for run.json: index hash (`data`) and
        number of faces (`faces`) of each source by kind/split, numbered if that repeats, and `learned_from`.
    Raises: RecipeError, if the two share faces, or a class or a whole batch has no face; DatasetError.
    """
    data, count = recipe.data, len(recipe.data.train)
    parts = [read_split(source, color=recipe.model.color, cache_dir=data.cache_dir) for source in data.sources]
    faces, valid = join(parts[:count]), None if data.valid is None else parts[-1]
    classes = faces.classes
    if valid is not None and valid.classes != classes:
        raise RecipeError(
            f"data: train has the classes {', '.join(classes)}, valid {', '.join(valid.classes)}. Set data.classes."
        )
    if valid is not None:
        _check_held_out(faces, valid)
    labeled = faces.labels[faces.labels >= 0]  # the others have only a teacher
    empty = set(classes).difference(classes[label] for label in labeled)
    if empty and len(labeled):
        others = ",".join(name for name in classes if name not in empty)
        raise RecipeError(
            f"data.train: no faces of {', '.join(sorted(empty))} among {len(labeled)}. To train the others only, set "
            f"data.classes=[{others}]; or add faces."
        )
    if len(faces) < recipe.batch_size:
        raise RecipeError(f"batch_size {recipe.batch_size}: larger than the {len(faces)} training faces")
    names: list[str] = []
    for source in data.sources:
        name = f"{source.kind}/{source.split}"
        repeated = sum(other.split(" ")[0] == name for other in names)
        names.append(f"{name} ({repeated + 1})" if repeated else name)
    hashes = {name: part.index_sha256 for name, part in zip(names, parts, strict=True)}
    numbers = {name: len(part) for name, part in zip(names, parts, strict=True)}
    run_info = {"data": hashes, "faces": numbers, "learned_from": {name: hashes[name] for name in names[:count]}}
    return faces, valid, run_info


def _check_held_out(faces: Split, valid: Split) -> None:
    """Raises: RecipeError, if faces of validation are also in train; logs copies of them under other names."""
    seen = {hash(crop.tobytes()) for crop in faces.crops}
    same = [key for key, crop in zip(valid.keys, valid.crops, strict=True) if hash(crop.tobytes()) in seen]
    if both := {*same}.intersection(faces.keys):
        raise RecipeError(
            f"data: {len(both)} of {len(valid)} faces of valid are also in train, such as {min(both)}. Give both the "
            "same options, and different splits."
        )
    if same:
        logger.warning(
            "data: %d of %d faces of valid have the pixels of a training face, such as %s: remove these from train",
            len(same), len(valid), same[0],
        )  # fmt: skip


class FaceBatch(NamedTuple):
    """A batch of B faces."""

    crops: Tensor  # (B, 112, 112, C) uint8
    targets: Tensor  # (B, K) float32


class FaceBatches(Dataset[FaceBatch]):
    """Map-style dataset of the batches of a run; item b depends only on the seed and b.

    The last, incomplete batch of an epoch is dropped.
    """

    def __init__(self, faces: Split, recipe: Recipe) -> None:
        self.faces, self.recipe = faces, recipe
        self.steps_per_epoch = len(faces) // recipe.batch_size
        sizes = [len(part) for part in getattr(faces.crops, "datasets", [faces.crops])]
        self._sources = epoch_counts(sizes, [source.share for source in recipe.data.train])
        self._epoch, self._order = -1, np.empty(0, int)
        self._augment: Augment | None = None

    def _drawn(self, step: int) -> tuple[int, range, Array]:
        """Epoch of a step, the positions of its faces in the epoch, and the faces, (B,)."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, epoch_order(self._sources, seed=self.recipe.seed, epoch=epoch)
        size = self.recipe.batch_size
        positions = range(number * size, (number + 1) * size)
        return epoch, positions, self._order[positions.start : positions.stop]

    @property
    def frequencies(self) -> Array:
        """Mean target of the faces of an epoch, (K,)."""
        sizes, counts = zip(*self._sources, strict=True)
        draws = np.repeat(np.divide(counts, sizes, dtype=np.float32), sizes)
        frequencies: Array = (self.faces.targets * draws[:, None]).mean(axis=0)
        return frequencies

    def keys(self, step: int) -> list[str]:
        """Keys of the faces in the batch of a step, to find the cause of a loss that is not finite."""
        return [self.faces.keys[int(index)] for index in self._drawn(step)[2]]

    def __getitem__(self, step: int) -> FaceBatch:
        if self._augment is None:  # created in the worker process
            cv2.setNumThreads(0)
            self._augment = Augment(self.recipe.augment)
        epoch, positions, chosen = self._drawn(step)
        crops = [
            self._augment(np.asarray(self.faces.crops[face]), seed=seed_of(self.recipe.seed, epoch, position))
            for position, face in zip(positions, chosen.tolist(), strict=True)
        ]
        return FaceBatch(torch.from_numpy(np.stack(crops)), torch.from_numpy(self.faces.targets[chosen]))


def seed_of(seed: int, epoch: int, position: int) -> int:
    """Seed of the random numbers of a face, or of the step that begins with it, by its position in the epoch."""
    return int(np.random.SeedSequence([seed, epoch, position]).generate_state(1)[0])


def epoch_counts(sizes: Sequence[int], shares: Sequence[float | None]) -> list[tuple[int, int]]:
    """Size of each source, and how many of its faces an epoch has; one source, if an epoch has each face once.

    Args:
        sizes: number of faces of each source, whose sum is that of an epoch.
        shares: part of the epoch; sources without one have the rest, in proportion to their sizes.
    """
    if not any(shares):
        return [(sum(sizes), sum(sizes))]
    rest = 1 - sum(share or 0 for share in shares)
    others = sum(size for size, share in zip(sizes, shares, strict=True) if share is None)
    parts = [share or size / others * rest for size, share in zip(sizes, shares, strict=True)]
    counts: list[int] = np.diff(np.rint(np.cumsum(parts) * sum(sizes)).astype(int), prepend=0).tolist()
    return [*zip(sizes, counts, strict=True)]


def epoch_order(sources: Sequence[tuple[int, int]], *, seed: int, epoch: int) -> Array:
    """Order of the faces in an epoch, (N,) indices; equal seeds and epochs give equal orders.

    Args:
        sources: see `epoch_counts`; all faces of a source are drawn before one is drawn again.
    """
    draw = np.random.default_rng([seed, epoch])
    order, start = [], 0
    for size, count in sources:
        rounds = [draw.permutation(size) for _ in range(math.ceil(count / size))]
        order.append(start + np.concatenate([np.empty(0, int), *rounds])[:count])
        start += size
    return order[0] if len(order) == 1 else draw.permutation(np.concatenate(order))


def log_frequencies(frequencies: Array) -> Array:
    """Log of the class frequencies (K,) float32; of a class without faces, of which nothing is known, their mean."""
    known = np.log(frequencies, where=frequencies > 0, out=np.zeros_like(frequencies))
    found: Array = np.where(frequencies > 0, known, known[frequencies > 0].mean() if frequencies.any() else 0.0)
    return found.astype(np.float32)


def mix(crops: Tensor, targets: Tensor, config: MixConfig) -> tuple[Tensor, Tensor]:
    """Mix each face of a batch with the one before it; with both ways, each has half of the mixed batches.

    Args:
        crops: (B, H, W, C) uint8.
        targets: (B, K) class shares.
    Returns: crops and targets; mixed crops are float32, 0 to 255.
    """
    ways = [v2.MixUp(alpha=config.mixup)] if config.mixup else []
    ways += [v2.CutMix(alpha=config.cutmix)] if config.cutmix else []
    if not ways:
        return crops, targets
    transform = v2.RandomApply([v2.RandomChoice(ways)], p=config.probability)
    mixed, targets = transform(crops.permute(0, 3, 1, 2).float(), targets)
    return mixed.permute(0, 2, 3, 1), targets
