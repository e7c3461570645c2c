"""Outputs of a run by name: their files, and the functions that write them from the journal.

Copies and crops are written while labeling; all others afterwards, atomically and sorted by name.
"""

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Final

from mien.app.labeling import copies, report, tables
from mien.app.labeling.files import ForeignFile, LabelingError, disk_errors, foreign, output_lock
from mien.app.labeling.journal import Journal


@dataclass(frozen=True, slots=True)
class Output:
    """One output.

    Attributes:
        help: a line for the command line.
        target: file or folder that it writes.
        write: writes it after labeling; None for pictures.
        copies: bit mask of the pictures that it needs from labeling.
        reviewed: whether it shows decisions of the review.
        library: package that may not be installed.
    """

    help: str
    target: str
    write: Callable[[Journal], None] | None = None
    copies: int = 0
    reviewed: bool = False
    library: str | None = None


OUTPUTS: Final = {
    "annotated": Output("annotated/: copies with boxes and labels", copies.ANNOTATED_DIR, copies=copies.ANNOTATED),
    "coco": Output("coco.json: COCO detection and keypoints", "coco.json", tables.write_coco),
    "crops": Output("crops/: every face, 112x112 PNG", copies.CROPS_DIR, copies=copies.CROPS),
    "csv": Output("labels.csv: one row per face", "labels.csv", tables.write_csv_labels, reviewed=True),
    "episodes": Output("episodes.csv: when each person in a video shows what", "episodes.csv", tables.write_episodes),
    "jsonl": Output("labels.jsonl: one JSON object per face", "labels.jsonl", tables.write_jsonl, reviewed=True),
    "report": Output(
        "report.html: one page with counts, faces and errors",
        "report.html",
        report.write_report,
        copies=copies.THUMBS,
        reviewed=True,
    ),
    "video": Output("video/: videos as MP4 with boxes, labels and sound", "video", copies.write_videos),
    "xlsx": Output(
        "labels.xlsx: labels.csv as a workbook (extra `excel`)",
        "labels.xlsx",
        tables.write_xlsx,
        reviewed=True,
        library="xlsxwriter",
    ),
}


def check_outputs(names: Iterable[str]) -> None:
    """Reject outputs that cannot be written. Raises: LabelingError."""
    for name in names:
        library = OUTPUTS[name].library
        if library is not None and importlib.util.find_spec(library) is None:
            raise LabelingError(
                f"output {name}: {library} is not installed. Run `pip install {library}`, or choose csv or jsonl."
            )


def images_for(names: Iterable[str]) -> int:
    """Bit mask of the pictures that outputs need from labeling."""
    return reduce(or_, (OUTPUTS[name].copies for name in names), 0)


def write_output(name: str, journal: Journal) -> list[Path]:
    """Write an output; returns its file or folder. Raises: OSError."""
    output = OUTPUTS[name]
    if output.write is not None:
        output.write(journal)
    return [journal.out / output.target]


def record_outputs(names: Iterable[str], journal: Journal) -> None:
    """Store the outputs that this folder gets, so that they are known as its own.

    Raises: ForeignFile, if a file that no run has written has the name of an output.
    """
    earlier: list[str] = journal.settings.get("outputs", [])
    targets = {OUTPUTS[name].target for name in names}
    for target in sorted(targets.difference(journal.settings.get("targets", []))):
        path = journal.out / target
        if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
            raise ForeignFile(foreign(path))
    outputs = list(dict.fromkeys([*earlier, *names]))
    journal.put(outputs=outputs, targets=sorted(targets.union(journal.settings.get("targets", []))))


def update_reviewed(out: Path) -> list[Path]:
    """Write the existing outputs that show decisions of the review anew; returns their files. Raises: LabelingError."""
    with output_lock(out), disk_errors(out), contextlib.closing(Journal(out)) as journal:
        names = [name for name in journal.settings.get("outputs", []) if name in OUTPUTS and OUTPUTS[name].reviewed]
        names = [name for name in names if (out / OUTPUTS[name].target).exists()]
        check_outputs(names)
        return [path for name in names for path in write_output(name, journal)]
