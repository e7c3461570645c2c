"""Base class of readers, the `Sample` record, and the registry of readers.

A reader turns the layout of a data set into `Sample` records and 112x112 crops. Each file in this folder is one
reader: put a `Reader` subclass whose `kind` is the name of the file into `data/readers/<kind>.py`, and every command,
recipe and test finds it.

    mien data check ferplus path/to/ferplus
"""

import csv
import hashlib
import importlib
import io
import pkgutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from mien.data.atomic import write_atomic
from mien.data.contract import (
    LABELS,
    Array,
    DecodeError,
    DegenerateLandmarks,
    UnknownLabel,
    align,
    decode,
    fit,
    labels_of,
)
from mien.data.errors import DatasetError
from mien.data.near_duplicates import near_duplicates, thumbnails
from mien.data.tree import File, files_of, read_file, stamp_of

Point = tuple[float, float]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """One labeled face image.

    Attributes:
        key: stable id: the path of the file inside the data set, and `#` with a number for one of several faces.
        split: train, valid or test.
        label: the hard label; None if the set has none.
        distribution: share of the votes per label, in the order of the reader's `labels`, summing to 1.
        landmarks_px: five points in pixels of the image, in the order of `data.contract.align`.
        attributes: `person` and `photo`, if the set tells them.
    """

    key: str
    split: str
    label: str | None
    distribution: tuple[float, ...] | None = None
    landmarks_px: tuple[Point, ...] | None = None
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)


def _listed(value: Any) -> Any:
    """A list from a comma-separated text; of classes, a number stays one."""
    if not isinstance(value, str):
        return value
    return int(value) if value.isdecimal() else [part.strip() for part in value.split(",")]


def _mapped(value: Any) -> Any:
    """A mapping from the text `1=anger,2=disgust`; in YAML, its keys may be numbers."""
    if isinstance(value, str):
        pairs = (part.partition("=") for part in value.split(",") if part.strip())
        value = {key.strip(): of.strip() for key, _, of in pairs}
    return {str(key): of for key, of in value.items()} if isinstance(value, Mapping) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
ClassNames = Annotated[Literal[7, 8] | tuple[str, ...], BeforeValidator(_listed)]
LabelOf = Annotated[dict[str, str], BeforeValidator(_mapped)]


class ReaderOptions(BaseModel):
    """Options of all readers; a reader with more has a subclass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    classes: ClassNames = 7  # 8 with contempt last, or names of the labels to use, in order
    exclude_near_duplicates_of: Names = ()  # splits; images of the others that resemble one of these are left out


class Reader:
    """Base class of readers.

    A subclass defines `kind`, `title`, `where_to_get` (how to obtain the set), `terms` (its license) and `limits` (what
    cannot be learned from it), its options in a pydantic model, `Options`, and its samples in `read`. Threads can share
    an instance.
    """

    kind: ClassVar[str]
    title: ClassVar[str]
    where_to_get: ClassVar[str]
    terms: ClassVar[str] = "the terms of its owners"  # of images and labels; trained weights inherit them
    limits: ClassVar[str] = ""  # full sentences for the card of a model trained on the set
    known_labels: ClassVar[tuple[str, ...] | None] = LABELS  # all labels that the set has; None for any
    published: ClassVar[Mapping[str, Mapping[str, int]]] = {}  # number of samples per split and label
    Options: ClassVar[type[ReaderOptions]] = ReaderOptions

    def __init__(self, root: Path | str, options: ReaderOptions) -> None:
        """List the files below `root`: folder of the data set, its zip, or a folder with one zip; and their samples.

        Raises: DatasetError.
        """
        self.root = Path(root)
        self.options: Any = options  # an instance of `Options`
        self.notes: list[str] = []  # how the files were read, for `data.check`
        self.cache_dir: Path | None = None  # of what takes long to compute
        self._left_out: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by split: images by reason
        self._samples: dict[str, tuple[Sample, ...]] = {}
        try:
            self.labels = labels_of(options.classes)
            self.files: dict[str, File] = files_of(self.root)
        except (UnknownLabel, DatasetError) as error:
            raise self.error(str(error)) from error
        known = self.known_labels
        if known is not None and (unknown := [label for label in self.labels if label not in known]):
            raise DatasetError(f"{self.kind}: classes {', '.join(unknown)}: expected some of {', '.join(known)}")
        self._images: dict[str, list[Sample]] = {"train": [], "valid": [], "test": []}
        try:
            for sample in sorted(self.read(), key=attrgetter("key")):
                shares, number = sample.distribution, len(self.labels)
                if shares and not (len(shares) == number and min(shares) >= 0 and abs(sum(shares) - 1) < 1e-3):
                    raise DatasetError(f"{self.kind}: {sample.key}: shares {shares}, expected {number} that sum to 1")
                self._images[sample.split].append(sample)
        except UnknownLabel as error:
            raise self.error(str(error)) from error
        if not self.splits():
            raise self.error(f"nothing in {self.root} has the layout that data/README.md describes")

    def read(self) -> Iterable[Sample]:
        """List all images of all splits, in any order.

        The file of an image is the one in `files` that its key names, without a part from `#` if there is none. An
        image whose label is not in the option `classes` is left out; its label, such as "no face", is the reason.
        Raises: DatasetError, UnknownLabel.
        """
        raise NotImplementedError

    def distribution(self, shares: Mapping[str, float]) -> tuple[float, ...] | None:
        """Shares of `labels` with a sum of 1; None if other names have everything."""
        total = sum(shares[label] for label in self.labels)
        return tuple(shares[label] / total for label in self.labels) if total else None

    def splits(self) -> tuple[str, ...]:
        """Return the splits that are present, in the order train, valid, test."""
        return tuple(split for split, images in self._images.items() if images)

    def expected_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the published number of samples per split and label under the chosen options; {} if unpublished."""
        if self.options.exclude_near_duplicates_of:
            return {}
        counts_of = self.published.items()
        return {split: {name: counts[name] for name in self.labels if name in counts} for split, counts in counts_of}

    def voted(self, split: str) -> list[tuple[Sample, tuple[int, ...]]]:
        """List the images that most raters gave one of `labels`, each with the votes for these; [] without votes.

        Also images without a majority, which are not samples.
        """
        return []

    def left_out(self, split: str) -> Mapping[str, int]:
        """Return the number of images of a split that are not samples, by reason. Raises: see `samples`."""
        self.samples(split)
        return dict(self._left_out[split])

    def samples(self, split: str) -> list[Sample]:
        """List one split's samples, sorted by key. Raises: DatasetError, also for a missing split."""
        if split not in self.splits():
            raise self.error(f"no split {split!r} in {self.root}, it has {', '.join(self.splits())}")
        if split not in self._samples:
            samples = []
            for image in self._images[split]:
                if image.label is None or image.label in self.labels:
                    samples.append(image)
                else:
                    self._left_out[split][image.label] += 1
            for other in self.options.exclude_near_duplicates_of:
                if other not in self.splits():
                    raise self.error(f"exclude_near_duplicates_of={other}, but {self.root} has no such split")
                if other != split:
                    near = self._resembling(samples, self._images[other])
                    self._left_out[split][f"near-duplicates of {other}"] = int(near.sum())
                    samples = [sample for sample, is_near in zip(samples, near, strict=True) if not is_near]
            self._samples[split] = tuple(samples)
        return list(self._samples[split])

    def _resembling(self, samples: Sequence[Sample], others: Sequence[Sample]) -> Array:
        """Find the samples that resemble another image, (N,) bool; cached until one of the files changes."""

        def resembling() -> str:
            near = near_duplicates(self.thumbnails(samples), self.thumbnails(others))
            return "".join(str(int(is_near)) for is_near in near)

        flags = self.cached("near", map(self.stamp, (*samples, *others)), resembling)
        return np.array([flag == "1" for flag in flags], bool)

    def stamp(self, sample: Sample) -> str:
        """Everything that the crop of a sample depends on, with the size and time of its file instead of its bytes."""
        file = self.files.get(self.path_of(sample))
        return f"{sample.key} {sample.landmarks_px} {'' if file is None else stamp_of(file)}"

    def cached(self, what: str, stamps: Iterable[str], compute: Callable[[], str]) -> str:
        """A text that is computed of samples, or that of the cache with the same stamps."""
        if self.cache_dir is None:
            return compute()
        digest = hashlib.sha256("\n".join([self.kind, what, *stamps]).encode()).hexdigest()
        path = self.cache_dir / f"{self.kind}-{what}-{digest[:16]}.txt"
        if not path.exists():
            write_atomic(path, compute())
        return path.read_text(encoding="utf-8")

    def thumbnails(self, samples: Sequence[Sample]) -> Array:
        """Thumbnails of faces, (N, 256): of images that are faces, or of the faces aligned by their landmarks."""
        try:
            return thumbnails(self.image(s) if s.landmarks_px is None else self.crop(s) for s in samples)
        except DecodeError as error:
            raise self.error(f"an image is unreadable: {error}; `mien data check` names it") from error

    def path_of(self, sample: Sample) -> str:
        """Return the name of a sample's file."""
        return sample.key if sample.key in self.files else sample.key.rpartition("#")[0] or sample.key

    def read_bytes(self, sample: Sample) -> bytes:
        return self.read_file(self.path_of(sample))

    def image(self, sample: Sample) -> Array:
        """Return the image, (H, W, 3) uint8, RGB. Raises: DatasetError, data.contract.DecodeError."""
        return decode(self.read_bytes(sample))

    def crop(self, sample: Sample) -> Array:
        """Return the face, (112, 112, 3) uint8, RGB: aligned if there are landmarks, else fitted.

        Raises: DatasetError, naming a file that cannot be read, decoded or aligned.
        """
        try:
            return frame(self.image(sample), sample)
        except (DecodeError, DegenerateLandmarks) as error:
            raise DatasetError(
                f"{self.kind}: {sample.key}: {error}. Replace or remove it; `mien data check {self.kind} "
                f"{self.root}` lists all such files."
            ) from error

    def read_file(self, name: str) -> bytes:
        """Return a file's bytes. Raises: DatasetError, naming the file."""
        if name not in self.files:
            raise self.error(f"no {name} in {self.root}")
        return read_file(self.files[name])

    def read_text(self, name: str) -> str:
        """Return a UTF-8 file's text, without a byte-order mark. Raises: DatasetError, naming the file."""
        try:
            return self.read_file(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DatasetError(f"{self.root}: {name} is not UTF-8 text ({error}). Save it as UTF-8.") from error

    def rows(self, name: str, parse: Callable[[Any], T | None], *, header: bool = True) -> Iterator[T]:
        """Parse the rows of a CSV file, dicts or, without a header, lists; skips None and empty lines.

        Raises: DatasetError, naming the line that `parse` rejects.
        """
        text = io.StringIO(self.read_text(name), newline="")
        for line, row in enumerate(csv.DictReader(text) if header else csv.reader(text), start=1 + header):
            try:
                parsed = parse(row) if row else None
            except (LookupError, TypeError, ValueError) as error:
                raise self.error(f"{name} line {line}: {error!r} in {row}") from error
            if parsed is not None:
                yield parsed

    def find(self, marker: str) -> str | None:
        """Return the file with this name in the highest folder; None if there is no such file."""
        return min((name for name in self.files if f"/{name}".endswith(f"/{marker}")), key=len, default=None)

    def enter(self, *markers: str) -> None:
        """Name the files from the folder of the first marker that exists. Raises: DatasetError, without any."""
        for marker in markers:
            if (found := self.find(marker)) is not None:
                prefix = found.removesuffix(marker)
                inside = {name: file for name, file in self.files.items() if name.startswith(prefix)}
                self.files = {name.removeprefix(prefix): file for name, file in inside.items()}
                return
        raise self.error(f"no {' or '.join(markers)} in {self.root}")

    def class_folders(self, splits: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        """Key, split and class folder of the images in `split/class/`; `splits` are those of folders."""
        for name, file in list(self.files.items()):
            parts = name.split("/")[-3:]
            if len(parts) == 3 and parts[0].lower() in splits and name.lower().endswith((".jpg", ".jpeg", ".png")):
                key = "/".join(parts)
                self.files[key] = file
                yield key, splits[parts[0].lower()], parts[1]

    def error(self, problem: str) -> DatasetError:
        """Build an error that also tells how to obtain the set."""
        return DatasetError(f"{self.kind}: {problem}. {self.where_to_get}")


def frame(image: Array, sample: Sample) -> Array:
    """Cut a sample's face out of its decoded image; see `Reader.crop`."""
    if sample.landmarks_px is None:
        return fit(image)
    return align(image, np.asarray(sample.landmarks_px, dtype=np.float32))


def hold_out(
    samples: Iterable[Sample], share: float, name_of: Callable[[Sample], str] = attrgetter("key")
) -> frozenset[str]:
    """Names of a share of each class (rounded down): those with the smallest SHA-256, on every machine."""
    by_class = defaultdict(list)
    for sample in sorted(samples, key=lambda sample: hashlib.sha256(name_of(sample).encode()).digest()):
        by_class[sample.label].append(name_of(sample))
    return frozenset(name for names in by_class.values() for name in names[: int(len(names) * share + 1e-9)])


def held_out(
    samples: Sequence[Sample], split: str, share: float, name_of: Callable[[Sample], str] = attrgetter("key")
) -> list[Sample]:
    """Move a share of each class of train to another split; see `hold_out`."""
    chosen = hold_out((sample for sample in samples if sample.split == "train"), share, name_of)
    return [replace(sample, split=split) if name_of(sample) in chosen else sample for sample in samples]


def held_out_counts(train: Mapping[str, int], share: float) -> dict[str, dict[str, int]]:
    """Published counts of a train split of which a share of each class is `valid`; see `held_out`."""
    valid = {label: int(count * share + 1e-9) for label, count in train.items()}
    return {"train": {label: count - valid[label] for label, count in train.items()}, "valid": valid}


def kinds() -> list[str]:
    """Kinds of data sets: the files of this folder."""
    package = importlib.import_module("mien.data.readers")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if module.name != "base")


def reader_of(kind: str) -> type[Reader]:
    """Return the reader of a kind. Raises: DatasetError, naming the known kinds."""
    if kind not in kinds():
        raise DatasetError(f"no reader {kind!r}: expected one of {', '.join(kinds())}")
    module = importlib.import_module(f"mien.data.readers.{kind}")
    return next(value for value in vars(module).values() if isinstance(value, type) and vars(value).get("kind") == kind)


def open_reader(kind: str, root: Path | str, **options: object) -> Reader:
    """Open a data set by kind.

    Args:
        root: folder of the data set, its zip, or a folder with one zip.
        options: options of the reader, or texts of them.
    Raises: DatasetError, naming the known kinds or options.
    """
    reader = reader_of(kind)
    known = ", ".join(reader.Options.model_fields)
    try:
        chosen = reader.Options.model_validate(options)
    except ValidationError as error:
        problem = error.errors()[0]
        name = str(problem["loc"][0])
        if problem["type"] == "extra_forbidden":
            raise DatasetError(f"{kind}: no option {name!r}, expected one of {known}") from None
        expected = " or ".join(problem["msg"] for problem in error.errors())
        raise DatasetError(f"{kind}: option {name}={options[name]!r}: {expected}") from None
    return reader(root, chosen)


def parse_options(texts: list[str]) -> dict[str, str]:
    """Split `name=value` texts. Raises: DatasetError, naming a text without `=`."""
    for text in texts:
        if "=" not in text:
            raise DatasetError(f"option {text!r}: expected name=value")
    return dict(text.split("=", 1) for text in texts)


def index_sha256(reader: Reader, split: str) -> str:
    """Hash the training data of a split: keys, labels, distributions, landmarks and file bytes.

    Two machines with the same hash train on the same data. With a cache, the files are read again only if their names,
    sizes or times changed. Returns 64 hexadecimal digits. Raises: DatasetError, if a file is missing.
    """
    samples = reader.samples(split)

    def digest() -> str:
        sha256 = hashlib.sha256()
        for sample in samples:
            shares = "" if sample.distribution is None else " ".join(f"{share:.6f}" for share in sample.distribution)
            points = " ".join(f"{x:.3f},{y:.3f}" for x, y in sample.landmarks_px or ())
            file_sha256 = hashlib.sha256(reader.read_bytes(sample)).hexdigest()
            sha256.update("\t".join((sample.key, sample.label or "", shares, points, file_sha256)).encode() + b"\n")
        return sha256.hexdigest()

    stamps = (f"{reader.stamp(sample)} {sample.label} {sample.distribution}" for sample in samples)
    return reader.cached("index", stamps, digest)
