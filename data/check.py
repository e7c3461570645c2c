"""Check of a data set: whether a copy is complete, readable and equal to the published set.

    mien data check KIND ROOT [--option name=value] [--json]

Every image is read, decoded and cropped once. Counts are compared with the published ones, and images that occur in two
splits are found by their pixels.
"""

import hashlib
import json
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Column, Table

from mien.data.contract import Array
from mien.data.errors import DatasetError, MienError
from mien.data.readers.base import Reader, Sample, frame, kinds, open_reader, parse_options

_EXAMPLES = 3
_SEARCHED = 50  # images per split
_MIN_FACE_SHARE = 0.45  # of an image that readers use as a crop; of FERPlus, the median is 0.8
UNLABELED = "no label"  # name of the images without a label in `counts`

app = typer.Typer(help="Inspect facial-expression data sets.", no_args_is_help=True, add_completion=False)


@app.callback()
def _commands() -> None:
    """Make typer treat `check` as a subcommand although it is the only one."""


@app.command("check")
def check_command(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help=f"One of: {', '.join(kinds())}.")],
    root: Annotated[Path, typer.Argument(help="Folder of the data set, its zip, or a folder with one zip.")],
    option: Annotated[list[str] | None, typer.Option(help="Reader option, name=value; may be repeated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Count, decode and compare all images of a data set; exit with status 1 if there is a problem."""
    errors = Console(stderr=True)
    try:
        reader = open_reader(kind, root, **parse_options(option or []))
        report = check(reader, face_share=context.obj)
    except DatasetError as error:
        errors.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(1) from None
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print_report(reader, report)
    raise typer.Exit(1 if report["problems"] else 0)


def main(arguments: list[str], *, face_share: Callable[[Array], float] | None = None) -> None:
    """Command line `mien data`; exits with the status of the command. See `check` for `face_share`."""
    app(arguments, prog_name="mien data", obj=face_share)


def check(reader: Reader, *, face_share: Callable[[Array], float] | None = None) -> dict[str, Any]:
    """Check every image of every split.

    Args:
        face_share: width of the largest face over the shorter side of an image, 0 without a face. With it, images of
            own sets are recognized that are whole photos instead of crops.
    Returns: `kind`, `title` and `labels`; `counts` and `published`, numbers of images by split and label; `left_out`,
        numbers by split and reason; `problems` and `notes`.
    Raises: DatasetError.
    """
    counts, problems, pixels = dict[str, dict[str, int]](), list[str](), list[tuple[Sample, str]]()
    published, notes = reader.expected_counts(), list(reader.notes)
    for split in reader.splits():
        samples = reader.samples(split)
        found = Counter(sample.label for sample in samples)
        counts[split] = {label: found[label] for label in reader.labels}
        if found[None]:
            counts[split][UNLABELED] = found[None]
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            results = pool.map(partial(_pixels_of, reader), samples)
            seen = track(results, split, len(samples), console=Console(stderr=True), transient=True)
            checked = list(zip(samples, seen, strict=True))
        usable = [(sample, sha256) for sample, sha256 in checked if isinstance(sha256, str)]
        broken = [(sample, error) for sample, error in checked if isinstance(error, MienError)]
        if missing := [sample for sample, result in checked if result is None]:
            problems.append(f"{split}: {len(missing)} of {len(samples)} images are missing: {_listed(missing)}")
        if broken:
            listed = _listed([sample for sample, _ in broken])
            problems.append(f"{split}: {len(broken)} images are unreadable: {listed} ({broken[0][1]})")
        if face_share is not None and not published:
            problems += _photo_problems(split, [sample for sample, _ in usable], reader, face_share)
        pixels += usable
    for problem, is_problem in _same_pixels(pixels, is_own=not published):
        (problems if is_problem else notes).append(problem)
    problems += _count_problems(counts, published)  # of a part of a set: what hurts comes first
    left_out = {split: reader.left_out(split) for split in counts}
    report = {"kind": reader.kind, "title": reader.title, "labels": reader.labels, "counts": counts}
    return report | {"published": published, "left_out": left_out, "problems": problems, "notes": notes}


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


def _listed(samples: Sequence[Sample]) -> str:
    more = f" and {len(samples) - _EXAMPLES} more" if len(samples) > _EXAMPLES else ""
    return ", ".join(sample.key for sample in samples[:_EXAMPLES]) + more


def _photo_problems(
    split: str, samples: Sequence[Sample], reader: Reader, face_share: Callable[[Array], float]
) -> Iterator[str]:
    """Report images that are used as crops although most of a part of them show no large face."""
    whole = [sample for sample in samples if sample.landmarks_px is None]
    part = whole[:: max(1, len(whole) // _SEARCHED)]
    photos = [sample for sample in part if face_share(reader.image(sample)) < _MIN_FACE_SHARE]
    if len(photos) > len(part) / 2:
        yield (
            f"{split}: {len(photos)} of {len(part)} images examined have no face of at least {_MIN_FACE_SHARE:.0%} of "
            f"their width: {_listed(photos)}. Cut the faces out of whole photos: MIEN_MAX_FACES=1 mien label "
            f"{reader.root} --out found --write crops, and use found/crops"
        )


def _same_pixels(pixels: Sequence[tuple[Sample, str]], *, is_own: bool) -> Iterator[tuple[str, bool]]:
    """Report repeated images, and whether they are a problem: in an own set, also those with two labels."""
    first: dict[str, Sample] = {}
    copies: defaultdict[tuple[str, str], list[tuple[Sample, Sample]]] = defaultdict(list)
    for sample, sha256 in pixels:
        if (earlier := first.setdefault(sha256, sample)) is not sample:
            copies[sample.split, earlier.split].append((sample, earlier))
    for (split, other), pairs in copies.items():
        report = f"{split}: {len(pairs)} images have the same pixels as "
        if split != other:
            listed = _listed([sample for sample, _ in pairs])
            hint = f"Use the option exclude_near_duplicates_of={split} to leave them out of {other}"
            yield f"{report}an image of {other}: {listed}. {hint}", True
            continue
        relabeled = [sample for sample, earlier in pairs if sample.label != earlier.label]
        listed = f", {len(relabeled)} of them with another label: {_listed(relabeled)}" if relabeled else ""
        # Published sets have such copies: they are part of what results are compared on.
        yield f"{report}another image of {split}{listed}", bool(relabeled) and is_own


def _count_problems(
    counts: Mapping[str, Mapping[str, int]], published: Mapping[str, Mapping[str, int]]
) -> Iterator[str]:
    for split, expected in published.items():
        found = counts.get(split)
        if found is None:
            yield f"{split}: split not found, expected {sum(expected.values()):,} images"
        elif all(found[label] < count for label, count in expected.items()):
            yield f"{split}: a part of the set, {sum(found.values()):,} of {sum(expected.values()):,} images"
        else:
            for label, count in expected.items():
                if found[label] != count:
                    yield f"{split}: {found[label]:,} images of {label}, expected {count:,}"
    for split, found in counts.items():
        empty = [label for label, count in found.items() if not count]
        if empty and UNLABELED not in found:
            yield f"{split}: no images of {', '.join(empty)}"


def _print_report(reader: Reader, report: Mapping[str, Any]) -> None:
    console, counts, published = Console(), report["counts"], report["published"]

    def cells(found: Mapping[str, int], expected: Mapping[str, int] | None, label: str) -> str:
        """Found and published numbers of images of one label."""
        count = found.get(label, 0)
        if expected is None:
            return f"{count:,}"
        return f"[{'green' if count == expected[label] else 'red'}]{count:,}[/] / {expected[label]:,}"

    table = Table("label", *(Column(split, justify="right") for split in counts))
    table.title, table.caption = f"{reader.title}: {reader.root}", "found / published"
    totals = [
        {split: {**of, "all": sum(of.values())} for split, of in numbers.items()} for numbers in (counts, published)
    ]
    labels = dict.fromkeys(label for found in counts.values() for label in found)
    for label in (*labels, "all"):
        table.add_row(label, *(cells(found, totals[1].get(split), label) for split, found in totals[0].items()))
    table.add_row("left out", *(f"{sum(reasons.values()):,}" for reasons in report["left_out"].values()))
    console.print(table)
    for split, reasons in report["left_out"].items():
        if reasons:
            listed = ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))
            console.print(f"{split}: left out {listed}", markup=False, highlight=False)
    for kind, style in (("note", ""), ("problem", "red")):
        for text in report[f"{kind}s"]:
            console.print(f"{kind}: {text}", style=style, markup=False, highlight=False)
    if report["problems"]:
        console.print(f"{reader.title}: {reader.where_to_get}.", markup=False, highlight=False)
    else:
        console.print("no problems", style="green")
