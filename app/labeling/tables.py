"""Tables of the labels: CSV, JSON Lines, a workbook, COCO, and the episodes of videos."""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import IO, Any, Final

from mien.app.inference.records import Face, flat
from mien.app.labeling.corrections import Corrections
from mien.app.labeling.files import open_output, parts_dir
from mien.app.labeling.journal import Journal, Result
from mien.app.video.episodes import COLUMNS as EPISODE_COLUMNS
from mien.app.video.episodes import Moment, episodes_of, values_of
from mien.data.contract import LABELS, LANDMARKS

Row = dict[str, str | int | float | bool | None]

# Names and meanings are stable, and new columns come last; docs/labeling.md has the meanings.
COLUMNS: Final = (
    "file", "status", "face", "x", "y", "width", "height", "label", "confidence",
    *(f"p_{label}" for label in LABELS),
    "detector", "model", "reason", "error", "uncertain", "uncertainty", "detection_score",
    *(f"{point}_{axis}" for point in LANDMARKS for axis in "xy"),
    "roll", "sharpness", "frame", "time_s", "image_width", "image_height", "file_sha256", "yaw", "pitch", "precision",
    "p_contempt", "reasons", "corrected", "agreement", "notes", "person",
)  # fmt: skip
_SHARES: Final = ("confidence", "agreement")  # and probabilities: six digits in CSV
BYTE_ORDER_MARK: Final = "\ufeff"  # without it, Excel takes UTF-8 for the code page of Windows
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\r")  # first characters of texts that spreadsheets run
MAX_ROWS: Final = 1_048_576  # rows of a sheet, with its header
_MAX_CHARACTERS: Final = 32_767  # characters of a cell


def columns_of(journal: Journal) -> tuple[str, ...]:
    """Columns of the rows of faces; those for the classes of the model that are not expressions come last."""
    return (*COLUMNS, *(f"p_{label}" for label in journal.expressions if f"p_{label}" not in COLUMNS))


def face_rows(journal: Journal) -> Iterator[Row]:
    """One row per face, or one row with an empty `face` for an image without faces."""
    corrections, empty = Corrections(journal.out), dict.fromkeys(columns_of(journal))
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
        decided = corrections.of(image)
        for face in image.faces:
            correction = decided.get(face.index)
            corrected = None if correction is None else correction.label
            yield shared | flat(face) | {"person": face.person, "corrected": corrected}


def write_csv_labels(journal: Journal) -> None:
    """Write `labels.csv`."""
    with open_output(journal.out, "labels.csv") as file:
        write_csv(file, columns_of(journal), face_rows(journal), safe=journal.options.spreadsheet_safe)


def write_csv(file: IO[str], columns: Sequence[str], rows: Iterable[Row], *, safe: bool) -> None:
    """Write a table with a header and line feeds as line endings.

    safe: mark it as UTF-8, and texts that a spreadsheet would run as texts.
    """
    shares = {name for name in columns if name in _SHARES or name.startswith("p_")}
    file.write(BYTE_ORDER_MARK if safe else "")
    writer = csv.writer(_LineFeeds(file))
    writer.writerow(columns)
    for row in rows:
        cells: list[str | float | None] = []
        for name in columns:
            match row[name]:
                case bool(value):
                    cells.append("true" if value else "false")
                case float(value) if name in shares:
                    cells.append(f"{value:.6f}")
                case str(value) if safe:
                    cells.append(without_formula(value))
                case value:
                    cells.append(value)
        writer.writerow(cells)


def without_formula(text: str) -> str:
    """The text, with an apostrophe first if a spreadsheet would run it."""
    return f"'{text}" if text.startswith(_FORMULA) else text


class _LineFeeds:
    """Stream that converts the line ending of a row to a line feed.

    With a line feed as `lineterminator`, `csv.writer` does not quote a name with a carriage return, which
    DuckDB rejects.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def write(self, row: str) -> int:
        return self._file.write(row.removesuffix("\r\n") + "\n")


def write_jsonl(journal: Journal) -> None:
    """Write `labels.jsonl`: one object per row of the CSV, whose empty values are null."""
    with open_output(journal.out, "labels.jsonl") as file:
        for row in face_rows(journal):
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_xlsx(journal: Journal) -> None:
    """Write `labels.xlsx` row by row; more rows than a sheet can have continue on another one."""
    import xlsxwriter

    # a text that begins like a formula, a number or a link stays a text
    texts = dict.fromkeys(("strings_to_formulas", "strings_to_numbers", "strings_to_urls"), False)
    folder = parts_dir(journal.out)
    folder.mkdir(parents=True, exist_ok=True)
    with open_output(journal.out, "labels.xlsx", "wb") as file:
        workbook = xlsxwriter.Workbook(file, texts | {"constant_memory": True, "tmpdir": str(folder)})
        workbook.set_properties({"created": datetime(2000, 1, 1, tzinfo=UTC)})  # equal runs have equal files
        columns = columns_of(journal)
        for title, rows in _sheets("faces", face_rows(journal)):
            _write_sheet(workbook, title, columns, rows)
        try:
            workbook.close()
        except xlsxwriter.exceptions.FileCreateError as error:
            raise error.args[0] from None  # the OSError, such as that of a full disk


def _sheets(name: str, rows: Iterable[Row]) -> Iterator[tuple[str, Iterator[Row]]]:
    """Titles and rows of the sheets of a table; at least one."""
    rows, number = iter(rows), 1
    yield name, islice(rows, MAX_ROWS - 1)
    for row in rows:
        number += 1
        yield f"{name} {number}", chain([row], islice(rows, MAX_ROWS - 2))


def _write_sheet(workbook: Any, title: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
    sheet = workbook.add_worksheet(title)
    sheet.freeze_panes(1, 1)
    sheet.write_row(0, 0, columns, workbook.add_format({"bold": True}))
    for index, row in enumerate(rows, start=1):
        for number, name in enumerate(columns):
            match row[name]:
                case None:
                    continue
                case bool(value):
                    sheet.write_boolean(index, number, value)
                case str(value):
                    sheet.write_string(index, number, value[:_MAX_CHARACTERS])
                case value:
                    sheet.write_number(index, number, value)


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
        write_csv(file, ("file", *EPISODE_COLUMNS), rows, safe=journal.options.spreadsheet_safe)


def _moments(journal: Journal, name: str) -> Iterator[Moment]:
    for image in journal.results(name):
        if image.frame is not None:
            yield Moment(image.time_s or 0.0, image.until_s or 0.0, image.scene, image.faces)
