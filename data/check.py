"""Check of a data set: whether a copy is complete, readable and equal to the published set.

Every image is read, decoded and cropped once. Counts are compared with the published ones, and images that occur in two
splits are found by their pixels. Run by `mien data check`.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from mien.data.contract import Array
from mien.data.errors import DatasetError, MienError
from mien.data.readers.base import Reader, Sample, frame

_EXAMPLES = 3
_SEARCHED = 50  # images per split
_MIN_FACE_SHARE = 0.45  # of an image that readers use as a crop; of FERPlus, the median is 0.8
UNLABELED = "no label"  # name of the images without a label in `Report.counts`


@dataclass(frozen=True, slots=True)
class Report:
    """Result of a check; counts are numbers of images."""

    kind: str
    title: str
    labels: tuple[str, ...]
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    published: dict[str, dict[str, int]] = field(default_factory=dict)
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(
    reader: Reader, progress: Callable[[str, int], None], *, face_share: Callable[[Array], float] | None = None
) -> Report:
    """Check every image of every split; a malformed annotation is reported like any other problem.

    Args:
        progress: called with the name of a split and the number of its images checked since the last call.
        face_share: width of the largest face over the shorter side of an image, 0 without a face. With it, images of
            own sets are recognized that are whole photos instead of crops.
    """
    published = {split: dict(counts) for split, counts in reader.expected_counts().items()}
    report = Report(reader.kind, reader.title, reader.labels, published=published, notes=list(reader.notes))
    pixels: list[tuple[Sample, str]] = []
    for split in reader.splits():
        try:
            samples = reader.samples(split)
        except DatasetError as error:
            report.problems.append(str(error))
            continue
        report.left_out[split] = dict(reader.left_out(split))
        counts = Counter(sample.label for sample in samples)
        report.counts[split] = {label: counts[label] for label in reader.labels}
        if counts[None]:
            report.counts[split][UNLABELED] = counts[None]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            checked = []
            for sample, result in zip(samples, pool.map(partial(_pixels_of, reader), samples), strict=True):
                progress(split, 1)
                checked.append((sample, result))
        usable = [(sample, sha256) for sample, sha256 in checked if isinstance(sha256, str)]
        broken = [(sample, error) for sample, error in checked if isinstance(error, MienError)]
        missing = [sample for sample, result in checked if result is None]
        if missing:
            report.problems.append(f"{split}: {len(missing)} of {len(samples)} images are missing: {_listed(missing)}")
        if broken:
            listed = _listed([sample for sample, _ in broken])
            report.problems.append(f"{split}: {len(broken)} images are unreadable: {listed} ({broken[0][1]})")
        if face_share is not None and not report.published:
            report.problems.extend(_photo_problems(split, [sample for sample, _ in usable], reader, face_share))
        pixels += usable
    _compare_pixels(report, pixels)
    report.problems.extend(_count_problems(report))  # of a part of a set: what hurts comes first
    return report


def _pixels_of(reader: Reader, sample: Sample) -> str | MienError | None:
    """Hash of an image, whatever the format of its file; None if it is missing."""
    if reader.path_of(sample) not in reader.files:
        return None
    try:
        image = reader.image(sample)
        frame(image, sample)
    except MienError as error:
        return error
    return hashlib.sha256(repr(image.shape).encode() + np.ascontiguousarray(image).tobytes()).hexdigest()


def _listed(samples: list[Sample]) -> str:
    more = f" and {len(samples) - _EXAMPLES} more" if len(samples) > _EXAMPLES else ""
    return ", ".join(sample.key for sample in samples[:_EXAMPLES]) + more


def _photo_problems(
    split: str, samples: list[Sample], reader: Reader, face_share: Callable[[Array], float]
) -> Iterator[str]:
    """Report images that are used as crops although most of a part of them show no large face."""
    whole = [sample for sample in samples if sample.landmarks_px is None]
    part = whole[:: max(1, len(whole) // _SEARCHED)]
    photos = [sample for sample in part if face_share(reader.image(sample)) < _MIN_FACE_SHARE]
    if len(photos) > len(part) / 2:
        yield (
            f"{split}: {len(photos)} of {len(part)} images examined have no face of at least {_MIN_FACE_SHARE:.0%} of "
            f"their width: {_listed(photos)}. Whole photos in class folders need the faces that `mien label` finds: "
            "see images=photos in data/README.md"
        )


def _count_problems(report: Report) -> Iterator[str]:
    for split, published in report.published.items():
        if split not in report.counts:
            yield f"{split}: split not found, expected {sum(published.values()):,} images"
            continue
        found = report.counts[split]
        if all(found[label] < count for label, count in published.items()):
            yield f"{split}: a part of the set, {sum(found.values()):,} of {sum(published.values()):,} images"
            continue
        for label, count in published.items():
            if found[label] != count:
                yield f"{split}: {found[label]:,} images of {label}, expected {count:,}"
    for split, counts in report.counts.items():
        empty = [label for label, count in counts.items() if not count]
        if empty and UNLABELED not in counts:
            yield f"{split}: no images of {', '.join(empty)}"


def _compare_pixels(report: Report, pixels: list[tuple[Sample, str]]) -> None:
    first: dict[str, Sample] = {}
    across: dict[tuple[str, str], list[Sample]] = {}
    within: dict[str, list[tuple[Sample, Sample]]] = {}
    for sample, sha256 in pixels:
        earlier = first.setdefault(sha256, sample)
        if earlier.split != sample.split:
            across.setdefault((sample.split, earlier.split), []).append(sample)
        elif earlier is not sample:
            within.setdefault(earlier.split, []).append((sample, earlier))
    for (split, other), samples in across.items():
        report.problems.append(
            f"{split}: {len(samples)} images have the same pixels as an image of {other}: {_listed(samples)}. "
            f"Use the option exclude_near_duplicates_of={split} to leave them out of {other}"
        )
    for split, pairs in within.items():
        note = f"{split}: {len(pairs)} images have the same pixels as another image of {split}"
        relabeled = [sample for sample, earlier in pairs if sample.label != earlier.label]
        listed = f", {len(relabeled)} of them with another label: {_listed(relabeled)}" if relabeled else ""
        # Published sets have such copies: they are part of what results are compared on.
        (report.problems if relabeled and not report.published else report.notes).append(note + listed)
