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
        key: stable id: the path of the file inside the data set.
        split: train, valid or test.
        label: the hard label, one of the reader's `labels`; None if the set has none.
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


class HoldingOutOptions(ReaderOptions):
    """Options of a reader of a set without a validation split."""

    hold_out_valid: bool = True  # false keeps all of train in train; there is no valid split then


class Reader:
    """Base class of readers.

    A subclass defines `kind`, `title`, `where_to_get` (how to obtain the set), `terms` (its license) and `limits` (what
    cannot be learned from it), and its options in a pydantic model, `Options`. It lists its samples in `__init__` in
    `_by_split`, or later in `_read_split`. Threads can share an instance.
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
        """List the files below `root`: folder of the data set, its zip, or a folder with one zip.

        Samples with a label that is not among the option `classes` are left out.
        Raises: DatasetError.
        """
        self.root, self.options = Path(root), options
        self._by_split: dict[str, list[Sample]] = {"train": [], "valid": [], "test": []}
        self._held_out: dict[str, float] = {}  # share of each class of train, by split
        self._left_out: defaultdict[str, Counter[str]] = defaultdict(Counter)  # by split: images by reason
        self._samples: dict[str, tuple[Sample, ...]] = {}
        self._prefix = ""  # of the keys' files
        self._path_by_key: dict[str, str] = {}  # of files that are elsewhere
        self.notes: list[str] = []  # how the files were read, for `data.check`
        self.cache_dir: Path | None = None  # of what takes long to compute
        try:
            self.labels = labels_of(options.classes)
            self.files: dict[str, File] = files_of(self.root)
        except UnknownLabel as error:
            raise DatasetError(f"{self.kind}: {error}") from error
        except DatasetError as error:
            raise self.error(str(error)) from error
        known = self.known_labels
        if known is not None and (unknown := [label for label in self.labels if label not in known]):
            raise DatasetError(f"{self.kind}: classes {', '.join(unknown)}: expected some of {', '.join(known)}")

    def _hold_out(self, split: str, share: float, name_of: Callable[[Sample], str] = attrgetter("key")) -> bool:
        """Move a share of each class of train to another split, chosen by the hashes of names; False if none is."""
        chosen = hold_out({name_of(sample): sample.label for sample in self._by_split["train"]}, share)
        pool, self._by_split["train"] = self._by_split["train"], []
        for sample in pool:
            to = split if name_of(sample) in chosen else "train"
            self._by_split[to].append(replace(sample, split=to))
        self._held_out[split] = share
        return bool(chosen)

    def _distribution(self, shares: Mapping[str, float]) -> tuple[float, ...] | None:
        """Shares of the reader's labels, which sum to 1; None if the others have everything."""
        total = sum(shares[label] for label in self.labels)
        return tuple(shares[label] / total for label in self.labels) if total else None

    def splits(self) -> tuple[str, ...]:
        """Return the splits that are present, in the order train, valid, test."""
        return tuple(split for split, samples in self._by_split.items() if samples)

    def _read_split(self, split: str) -> list[Sample]:
        """List one split's samples, in any order. Raises: DatasetError on a malformed annotation."""
        return self._by_split[split]

    def expected_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return the published number of samples per split and label under the chosen options; {} if unpublished."""
        if self.options.exclude_near_duplicates_of or not self.published:
            return {}
        counts_of = self.published.items()
        counts = {split: {name: of[name] for name in self.labels if name in of} for split, of in counts_of}
        for split, share in self._held_out.items():
            counts[split] = {label: int(count * share + 1e-9) for label, count in counts["train"].items()}
            counts["train"] = {label: count - counts[split][label] for label, count in counts["train"].items()}
        return counts

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
            raise self.error(f"no split {split!r} in {self.root}, it has {', '.join(self.splits()) or 'none'}")
        if split not in self._samples:
            samples = []
            for sample in self._read_split(split):
                if sample.label is None or sample.label in self.labels:
                    samples.append(sample)
                else:
                    self._left_out[split][sample.label] += 1
            for other in self.options.exclude_near_duplicates_of:
                if other not in self.splits():
                    raise self.error(f"exclude_near_duplicates_of={other}, but {self.root} has no such split")
                if other != split:
                    near = self._resembling(samples, other)
                    self._left_out[split][f"near-duplicates of {other}"] = int(near.sum())
                    samples = [sample for sample, is_near in zip(samples, near, strict=True) if not is_near]
            self._samples[split] = tuple(sorted(samples, key=lambda sample: sample.key))
        return list(self._samples[split])

    def _resembling(self, samples: Sequence[Sample], split: str) -> Array:
        """Find the samples that resemble an image of a split, (N,) bool; cached until one of the files changes."""
        parts = (samples, self._images_of(split))

        def resembling() -> str:
            near = near_duplicates(*(self.thumbnails(part) for part in parts))
            return "".join(str(int(is_near)) for is_near in near)

        stamps = (self._stamp(sample) for part in parts for sample in part)
        return np.array([flag == "1" for flag in self._cached("near", stamps, resembling)], bool)

    def _stamp(self, sample: Sample) -> str:
        """Everything that the crop of a sample depends on, with the size and time of its file instead of its bytes."""
        file = self.files.get(self.path_of(sample))
        return f"{sample.key} {sample.landmarks_px} {'' if file is None else stamp_of(file)}"

    def _cached(self, what: str, stamps: Iterable[str], compute: Callable[[], str]) -> str:
        """A text that is computed of samples, or that of the cache with the same stamps."""
        if self.cache_dir is None:
            return compute()
        digest = hashlib.sha256("\n".join([self.kind, what, *stamps]).encode()).hexdigest()
        path = self.cache_dir / f"{self.kind}-{what}-{digest[:16]}.txt"
        if not path.exists():
            write_atomic(path, compute())
        return path.read_text(encoding="utf-8")

    def _images_of(self, split: str) -> list[Sample]:
        """List all images of a split for `exclude_near_duplicates_of`, whether they are samples or not."""
        return self._read_split(split)

    def thumbnails(self, samples: Sequence[Sample]) -> Array:
        """Thumbnails of faces, (N, 256): of images that are faces, or of the faces aligned by their landmarks."""
        try:
            return thumbnails(self.image(s) if s.landmarks_px is None else self.crop(s) for s in samples)
        except DecodeError as error:
            raise self.error(f"an image is unreadable: {error}; `mien data check` names it") from error

    def labeled(self, split: str) -> list[Sample]:
        """List the samples with one of `labels`, sorted by key. Raises: DatasetError, also if there are none."""
        labeled = [sample for sample in self.samples(split) if sample.label in self.labels]
        if not labeled:
            raise DatasetError(f"{self.kind}: split {split!r} has no faces labeled {', '.join(self.labels)}")
        return labeled

    def path_of(self, sample: Sample) -> str:
        """Return the name of a sample's file."""
        return self._path_by_key.get(sample.key, self._prefix + sample.key)

    def read_bytes(self, sample: Sample) -> bytes:
        return self.read(self.path_of(sample))

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

    def read(self, name: str) -> bytes:
        """Return a file's bytes. Raises: DatasetError, naming the file."""
        if name not in self.files:
            raise DatasetError(f"cannot read {name} in {self.root}: no such file")
        return read_file(self.files[name])

    def read_text(self, name: str) -> str:
        """Return a UTF-8 file's text, without a byte-order mark. Raises: DatasetError, naming the file."""
        try:
            return self.read(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DatasetError(f"{self.root}: {name} is not UTF-8 text ({error}). Save it as UTF-8.") from error

    def rows(self, name: str, parse: Callable[[dict[str, str]], T | None]) -> Iterator[T]:
        """Parse the rows of a CSV file; skips None. Raises: DatasetError, naming the line that `parse` rejects."""
        for line, row in enumerate(csv.DictReader(io.StringIO(self.read_text(name), newline="")), start=2):
            try:
                parsed = parse(row)
            except (LookupError, TypeError, ValueError) as error:
                raise self.error(f"{name} line {line}: {error!r} in {row}") from error
            if parsed is not None:
                yield parsed

    def find(self, marker: str) -> str | None:
        """Return the file with this name in the highest folder; None if there is no such file."""
        return min((name for name in self.files if f"/{name}".endswith(f"/{marker}")), key=len, default=None)

    def folder_of(self, *markers: str) -> str:
        """Return the prefix ("" or "a/b/") of the first marker that exists. Raises: DatasetError, without any."""
        found = ((self.find(marker), marker) for marker in markers)
        prefix = next((name.removesuffix(marker) for name, marker in found if name is not None), None)
        if prefix is None:
            raise self.error(f"no {' or '.join(markers)} in {self.root}")
        return prefix

    def class_folders(self, splits: Mapping[str, str]) -> Iterator[tuple[Sample, str]]:
        """Images in `split/class/`, each without a label and with its class folder; `splits` are those of folders."""
        for name in self.files:
            parts = name.split("/")[-3:]
            if len(parts) == 3 and parts[0].lower() in splits and name.lower().endswith((".jpg", ".jpeg", ".png")):
                key = "/".join(parts)
                self._path_by_key[key] = name
                yield Sample(key, splits[parts[0].lower()], None), parts[1]

    def error(self, problem: str) -> DatasetError:
        """Build an error that also tells how to obtain the set."""
        return DatasetError(f"{self.kind}: {problem}. {self.where_to_get}")


def frame(image: Array, sample: Sample) -> Array:
    """Cut a sample's face out of its decoded image; see `Reader.crop`."""
    if sample.landmarks_px is None:
        return fit(image)
    return align(image, np.asarray(sample.landmarks_px, dtype=np.float32))


def hold_out(class_of: Mapping[str, str | None], share: float) -> frozenset[str]:
    """Select a share of the names of each class (rounded down): those with the smallest SHA-256, on every machine."""
    by_class: dict[str | None, list[str]] = {}
    for name in sorted(class_of, key=lambda name: hashlib.sha256(name.encode()).digest()):
        by_class.setdefault(class_of[name], []).append(name)
    return frozenset(name for names in by_class.values() for name in names[: int(len(names) * share + 1e-9)])


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

    stamps = (f"{reader._stamp(sample)} {sample.label} {sample.distribution}" for sample in samples)
    return reader._cached("index", stamps, digest)
