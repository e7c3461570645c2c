"""Check of a data set: whether this copy is complete, readable and the one that was published.

Every image is read, decoded and cropped once; counts are compared with the published ones; images that occur in two
splits are found by their pixels. Called by `python -m data check`.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from data.errors import MienError
from data.readers.base import Reader, Sample, frame, pixel_sha256
from data.tree import DatasetError

_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class Report:
    """What a check found; counts are pictures."""

    kind: str
    title: str
    labels: tuple[str, ...]
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    published: dict[str, dict[str, int]] = field(default_factory=dict)
    left_out: dict[str, dict[str, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Look:
    sample: Sample
    pixels: str | None  # hash, None where the picture cannot be used
    missing: bool = False
    error: str = ""


def check(reader: Reader, progress: Callable[[str, int], None]) -> Report:
    """Look at every picture of every split; malformed annotations become a problem like any other.

    Args:
        reader: an opened set.
        progress: called with a split's name and how many of its pictures were looked at since the last call.
    """
    report = Report(reader.kind, reader.title, reader.labels)
    report.published.update({split: dict(counts) for split, counts in reader.expected_counts().items()})
    looks: list[_Look] = []
    for split in reader.splits():
        try:
            samples = reader.samples(split)
        except DatasetError as error:
            report.problems.append(str(error))
            continue
        report.left_out[split] = dict(reader.left_out(split))
        report.counts[split] = _count(samples, reader.labels)
        report.problems.extend(_label_problems(split, samples, reader.labels))
        looks_of_split = list(_look_at(reader, samples, progress))
        report.problems.extend(_file_problems(split, looks_of_split))
        looks += looks_of_split
    report.problems.extend(_count_problems(report))
    report.problems.extend(reader.findings())
    _compare_pixels(report, looks, reader.on_duplicates)
    return report


def _count(samples: list[Sample], labels: tuple[str, ...]) -> dict[str, int]:
    found = Counter(sample.label for sample in samples)
    return {label: found[label] for label in labels}


def _look_at(reader: Reader, samples: list[Sample], progress: Callable[[str, int], None]) -> Iterator[_Look]:
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        for look in pool.map(lambda sample: _look(reader, sample), samples):
            progress(look.sample.split, 1)
            yield look


def _look(reader: Reader, sample: Sample) -> _Look:
    if reader.path_of(sample) not in reader.tree:
        return _Look(sample, None, missing=True)
    try:
        picture = reader.picture(sample)
        frame(picture, sample)
    except MienError as error:
        return _Look(sample, None, error=str(error))
    return _Look(sample, pixel_sha256(picture))


def _named(samples: list[Sample]) -> str:
    more = f" and {len(samples) - _EXAMPLES} more" if len(samples) > _EXAMPLES else ""
    return ", ".join(sample.key for sample in samples[:_EXAMPLES]) + more


def _label_problems(split: str, samples: list[Sample], labels: tuple[str, ...]) -> Iterator[str]:
    strange = [sample for sample in samples if sample.label is not None and sample.label not in labels]
    if strange:
        yield f"{split}: {len(strange)} labels are none of {', '.join(labels)}: {_named(strange)}"
    uneven = [
        sample
        for sample in samples
        if sample.distribution is not None
        and (len(sample.distribution) != len(labels) or abs(sum(sample.distribution) - 1) > 1e-6)
    ]
    if uneven:
        yield f"{split}: {len(uneven)} distributions do not sum to 1 over {len(labels)} labels: {_named(uneven)}"


def _file_problems(split: str, looks: list[_Look]) -> Iterator[str]:
    missing = [look.sample for look in looks if look.missing]
    if missing:
        yield f"{split}: {len(missing)} of {len(looks)} pictures are missing: {_named(missing)}"
    broken = [look for look in looks if look.error]
    if broken:
        samples = [look.sample for look in broken]
        yield f"{split}: {len(broken)} pictures are unreadable: {_named(samples)} ({broken[0].error})"


def _count_problems(report: Report) -> Iterator[str]:
    for split, published in report.published.items():
        if split not in report.counts:
            yield f"{split}: the split is not there, {sum(published.values()):,} pictures were published"
            continue
        differing = {label: count for label, count in published.items() if report.counts[split][label] != count}
        for label, count in differing.items():
            yield f"{split}: {report.counts[split][label]:,} pictures of {label}, {count:,} were published"
    for split, counts in report.counts.items():
        empty = [label for label, count in counts.items() if not count]
        if empty:
            yield f"{split}: no picture of {', '.join(empty)}"


def _compare_pixels(report: Report, looks: list[_Look], advice: str) -> None:
    first: dict[str, Sample] = {}
    across: dict[tuple[str, str], list[Sample]] = {}
    within: dict[str, list[Sample]] = {}
    for look in looks:
        if look.pixels is None:
            continue
        earlier = first.setdefault(look.pixels, look.sample)
        if earlier.split != look.sample.split:
            across.setdefault((look.sample.split, earlier.split), []).append(look.sample)
        elif earlier is not look.sample:
            within.setdefault(earlier.split, []).append(look.sample)
    for (split, other), samples in across.items():
        problem = f"{split}: {len(samples)} pictures repeat the pixels of a {other} picture: {_named(samples)}"
        report.problems.append(f"{problem}. {advice}".removesuffix(". "))
    for split, samples in within.items():
        report.notes.append(f"{split}: {len(samples)} pictures repeat the pixels of another {split} picture")
