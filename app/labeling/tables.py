"""Outputs of a run by name, and its tables: CSV, JSON Lines, a workbook, COCO, and the episodes of videos.

Copies and crops are written while labeling; all others afterwards, atomically and sorted by name.
"""

import contextlib
import csv
import importlib.util
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, Final, NamedTuple

from mien.app.errors import LabelingError
from mien.app.inference.records import Face, flat
from mien.app.labeling.copies import ANNOTATED, CROPS, REPORT, disk_errors, foreign, open_output, output_lock, parts_dir
from mien.app.labeling.journal import Journal, Result
from mien.app.labeling.report import write_report
from mien.app.labeling.videos import write_videos
from mien.app.video.episodes import COLUMNS as EPISODE_COLUMNS
from mien.app.video.episodes import Moment, episodes_of, values_of
from mien.data.contract import LABELS, LANDMARKS

Row = dict[str, str | int | float | bool | None]

# Names and meanings are stable, and new columns come last; docs/outputs.md has the meanings.
COLUMNS: Final = (
    "file", "status", "face", "x", "y", "width", "height", "label", "confidence",
    *(f"p_{label}" for label in LABELS),
    "detector", "model", "reason", "error", "uncertain", "uncertainty", "detection_score",
    *(f"{point}_{axis}" for point in LANDMARKS for axis in "xy"),
    "roll", "sharpness", "frame", "time_s", "image_width", "image_height", "file_sha256", "yaw", "pitch", "precision",
    "p_contempt", "reasons", "corrected", "agreement", "notes", "person",
)  # fmt: skip
_SHARES: Final = ("confidence", "agreement")  # They and the probabilities have six digits in CSV.
_MAX_ROWS: Final = 1_048_576  # Excel has so many rows per sheet, with the header, and so many characters per cell.
_MAX_CHARACTERS: Final = 32_767


def columns_of(journal: Journal) -> tuple[str, ...]:
    """Columns of the rows of faces; a model without the seven expressions has its classes in their place."""
    own = tuple(f"p_{label}" for label in journal.expressions)
    if set(LABELS) <= set(journal.expressions):
        return (*COLUMNS, *(name for name in own if name not in COLUMNS))
    start = COLUMNS.index("confidence") + 1
    return (*COLUMNS[:start], *own, *(name for name in COLUMNS[start:] if not name.startswith("p_")))


def face_rows(journal: Journal) -> Iterator[Row]:
    """One row per face, or one row with an empty `face` for an image without faces."""
    empty: Row = dict.fromkeys(columns_of(journal))
    empty |= {"detector": journal.detector, "model": journal.model, "precision": journal.precision}
    for image in journal.results():
        shared = empty | {
            "file": image.name,
            "status": image.status,
            "reason": image.reason,
            "error": image.error,
            "frame": image.frame,
            "time_s": image.time_s,
            "image_width": image.width,
            "image_height": image.height,
            "file_sha256": image.sha256,
            "notes": " ".join(image.notes) or None,
        }
        if not image.faces:
            yield shared
        decided = journal.corrections.of(image)
        for face in image.faces:
            correction = decided.get(face.index)
            corrected = None if correction is None else correction.label
            yield shared | flat(face) | {"person": face.person, "corrected": corrected}


def write_csv_labels(journal: Journal) -> None:
    """Write `labels.csv`."""
    with open_output(journal.out, "labels.csv") as file:
        write_csv(file, columns_of(journal), face_rows(journal))


def write_csv(file: IO[str], columns: Sequence[str], rows: Iterable[Row]) -> None:
    """Write a table with a header and line feeds as line endings."""
    shares = [name for name in columns if name in _SHARES or name.startswith("p_")]
    # With a line feed as `lineterminator`, a name with a carriage return is not quoted, which DuckDB rejects.
    writer = csv.writer(SimpleNamespace(write=lambda row: file.write(row.removesuffix("\r\n") + "\n")))
    writer.writerow(columns)
    for row in rows:
        texts = {name: f"{share:.6f}" for name in shares if (share := row[name]) is not None}
        texts |= {name: str(value).lower() for name, value in row.items() if value is True or value is False}
        cells = row | texts
        writer.writerow([cells[name] for name in columns])


def write_jsonl(journal: Journal) -> None:
    """Write `labels.jsonl`: one object per row of the CSV, whose empty values are null."""
    with open_output(journal.out, "labels.jsonl") as file:
        for row in face_rows(journal):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_xlsx(journal: Journal) -> None:
    """Write `labels.xlsx` row by row; more rows than a sheet can have continue on another one."""
    import xlsxwriter

    # A text that begins like a formula, a number or a link stays a text.
    texts = dict.fromkeys(("strings_to_formulas", "strings_to_numbers", "strings_to_urls"), False)
    folder = parts_dir(journal.out)
    folder.mkdir(parents=True, exist_ok=True)
    with open_output(journal.out, "labels.xlsx", "wb") as file:
        workbook = xlsxwriter.Workbook(file, texts | {"constant_memory": True, "tmpdir": str(folder)})
        workbook.set_properties({"created": datetime(2000, 1, 1, tzinfo=UTC)})  # Equal runs have equal files.
        columns, rows = columns_of(journal), face_rows(journal)
        _write_sheet(workbook, "faces", columns, islice(rows, _MAX_ROWS - 1))
        for number, row in enumerate(rows, start=2):
            _write_sheet(workbook, f"faces {number}", columns, chain([row], islice(rows, _MAX_ROWS - 2)))
        try:
            workbook.close()
        except xlsxwriter.exceptions.FileCreateError as error:
            raise error.args[0] from None  # It is an OSError, such as that of a full disk.


def _write_sheet(workbook: Any, title: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    sheet = workbook.add_worksheet(title)
    sheet.freeze_panes(1, 1)
    sheet.write_row(0, 0, columns, workbook.add_format({"bold": True}))
    for index, row in enumerate(rows, start=1):
        values = (row[name] for name in columns)
        sheet.write_row(index, 0, [value[:_MAX_CHARACTERS] if isinstance(value, str) else value for value in values])


def write_coco(journal: Journal) -> None:
    """Write `coco.json`; images and annotations are streamed in two passes over the journal."""
    categories = [
        {"id": number, "name": label, "supercategory": "face", "keypoints": LANDMARKS, "skeleton": []}
        for number, label in enumerate(journal.expressions, start=1)
    ]
    info = {"description": "Facial expressions labeled by mien", "model": journal.model, "precision": journal.precision}
    info["detector"] = journal.detector
    faces = ((image_id, face) for image_id, image in _labeled(journal) for face in image.faces)
    with open_output(journal.out, "coco.json") as file:
        file.write(f'{{"info": {json.dumps(info)},\n"categories": {json.dumps(categories)},\n"images": [')
        _write_entries(file, (_image(number, image) for number, image in _labeled(journal)))
        file.write('],\n"annotations": [')
        _write_entries(file, (_annotation(journal, number, *face) for number, face in enumerate(faces, start=1)))
        file.write("]}\n")


def _write_entries(file: IO[str], entries: Iterable[dict[str, Any]]) -> None:
    for number, entry in enumerate(entries):
        file.write((",\n" if number else "\n") + json.dumps(entry, ensure_ascii=False))


def _labeled(journal: Journal) -> Iterator[tuple[int, Result]]:
    return enumerate((image for image in journal.results() if image.status not in ("error", "skipped")), start=1)


def _image(number: int, image: Result) -> dict[str, Any]:
    entry = {"id": number, "file_name": image.name, "width": image.width, "height": image.height}
    return entry if image.frame is None else entry | {"frame": image.frame, "time_s": image.time_s}


def _annotation(journal: Journal, number: int, image_id: int, face: Face) -> dict[str, Any]:
    values = flat(face)
    x, y, width, height = (round(value, 1) for value in face.box)
    return {
        "id": number,
        "image_id": image_id,
        "category_id": journal.expressions.index(face.label) + 1,
        "bbox": [x, y, width, height],
        "area": round(width * height, 1),
        "iscrowd": 0,
        "keypoints": [value for name in LANDMARKS for value in (values[f"{name}_x"], values[f"{name}_y"], 2)],
        "num_keypoints": len(LANDMARKS),
        "score": values["confidence"],
        "attributes": {name: values[name] for name in ("uncertainty", "roll", "sharpness")},
    }


def write_episodes(journal: Journal) -> None:
    """Write `episodes.csv`: from when to when each person in a video shows which expression."""
    rows: Iterator[Row] = (
        {"file": name, **values_of(episode)}
        for name in journal.videos()
        for episode in episodes_of(_moments(journal, name))
    )
    with open_output(journal.out, "episodes.csv") as file:
        write_csv(file, ("file", *EPISODE_COLUMNS), rows)


def _moments(journal: Journal, name: str) -> Iterator[Moment]:
    for image in journal.frames(name):
        yield Moment(image.time_s or 0.0, image.until_s or 0.0, image.scene, image.faces)


class Output(NamedTuple):
    """A file or folder of a run, and what writes it after labeling, if it is not written while labeling."""

    target: str
    write: Callable[[Journal], None] | None = None


OUTPUTS: Final = {
    ANNOTATED: Output(ANNOTATED),
    CROPS: Output(CROPS),
    REPORT: Output("report.html", write_report),
    "coco": Output("coco.json", write_coco),
    "csv": Output("labels.csv", write_csv_labels),
    "episodes": Output("episodes.csv", write_episodes),
    "jsonl": Output("labels.jsonl", write_jsonl),
    "video": Output("video", write_videos),
    "xlsx": Output("labels.xlsx", write_xlsx),
}
_REVIEWED: Final = ("csv", "jsonl", "xlsx", REPORT)  # They show decisions of the review.


def check_outputs(names: Iterable[str]) -> None:
    """Reject outputs that cannot be written. Raises: LabelingError."""
    if "xlsx" in names and importlib.util.find_spec("xlsxwriter") is None:
        raise LabelingError("output xlsx: run `pip install xlsxwriter`, or choose csv or jsonl.")


def write_output(name: str, journal: Journal) -> Path:
    """Write an output; returns its file or folder. Raises: OSError."""
    output = OUTPUTS[name]
    if output.write is not None:
        output.write(journal)
    return journal.out / output.target


def record_outputs(names: Iterable[str], journal: Journal) -> None:
    """Store the outputs that this folder gets, so that they are known as its own, and the pictures they need.

    Pictures of an earlier run that still exist are kept complete.
    Raises: LabelingError, if a file that no run has written has the name of an output.
    """
    known, targets = set(journal.settings.get("targets", [])), {OUTPUTS[name].target for name in names}
    for target in sorted(targets - known):
        path = journal.out / target
        if os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir())):
            raise foreign(path)
    kept = {target for target in known if os.path.lexists(journal.out / target)}
    pictures = [name for name in (ANNOTATED, CROPS, REPORT) if OUTPUTS[name].target in targets | kept]
    journal.put(targets=sorted(targets | known), pictures=pictures)


def update_reviewed(out: Path) -> list[Path]:
    """Write the existing outputs that show decisions of the review anew; returns their files. Raises: LabelingError."""
    with output_lock(out), disk_errors(out), contextlib.closing(Journal(out)) as journal:
        targets = [target for target in journal.settings.get("targets", []) if (out / target).exists()]
        names = [name for name in _REVIEWED if OUTPUTS[name].target in targets]
        check_outputs(names)
        return [write_output(name, journal) for name in names]
