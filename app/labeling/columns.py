"""Columns of the tables: one list for CSV, JSON Lines, the workbook and the documentation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from mien.app.inference.records import NOTES, flat
from mien.app.labeling.corrections import Corrections
from mien.app.labeling.journal import Journal
from mien.data.contract import LABELS, LANDMARKS
from mien.data.quality import REASONS

Value = str | int | float | bool | None
Type = Literal["text", "integer", "number", "boolean"]
Row = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: name, type, unit, meaning. Names and meanings are stable; new columns come last."""

    name: str
    type: Type
    unit: str
    meaning: str


NOTES_MEANING: Final = f"codes of what to know about the image, separated by spaces: {', '.join(NOTES)}"
FACE_COLUMNS: Final[tuple[Column, ...]] = (
    Column("file", "text", "", "name of the input, relative to the folder given"),
    Column("status", "text", "", "`ok`, `no_face`, `error` or `skipped` (not an image)"),
    Column("face", "integer", "", "number of the face in its image, from 0, largest first; empty without a face"),
    Column("x", "number", "px", "left edge of the box, in the upright image; may be negative"),
    Column("y", "number", "px", "upper edge of the box"),
    Column("width", "number", "px", "width of the box"),
    Column("height", "number", "px", "height of the box"),
    Column("label", "text", "", "most probable expression"),
    Column("confidence", "number", "0..1", "calibrated probability of `label`"),
    *(Column(f"p_{label}", "number", "0..1", f"calibrated probability of {label}") for label in LABELS),
    Column("detector", "text", "", "detector that found the face"),
    Column("model", "text", "", "artifact that labeled it"),
    Column("reason", "text", "", "stable code of the error; empty if there was none"),
    Column("error", "text", "", "error message"),
    Column("uncertain", "boolean", "", "whether `confidence` is below the model's confidence threshold"),
    Column("uncertainty", "number", "0..1", "entropy of the probabilities over its maximum, ln of their number"),
    Column("detection_score", "number", "0..1", "score of the detector; comparable for the same detector"),
    *(
        Column(f"{point}_{axis}", "number", "px", f"{point.replace('_', ' ')}, {axis}; left and right as in the image")
        for point in LANDMARKS
        for axis in "xy"
    ),
    Column("roll", "number", "degrees", "in-plane rotation of the face, clockwise positive"),
    Column("sharpness", "number", "gray levels^2", "variance of the Laplacian of the face crop"),
    Column("frame", "integer", "", "number from 0 of a frame of a video; empty for still images"),
    Column("time_s", "number", "s", "time of the frame since the start of the video"),
    Column("image_width", "integer", "px", "width of the upright image"),
    Column("image_height", "integer", "px", "height of the upright image"),
    Column("file_sha256", "text", "", "SHA-256 of the file's bytes (of the whole file for a frame)"),
    Column("yaw", "number", "degrees", "estimated turn of the head; positive: to the right of the image"),
    Column("pitch", "number", "degrees", "estimated tilt of the head; positive: upward"),
    Column("precision", "text", "", "precision in which the model ran: `fp32`, `fp16` or `int8`"),
    Column("p_contempt", "number", "0..1", "calibrated probability of contempt; empty if the model does not know it"),
    Column("reasons", "text", "", f"why `label` may be wrong, separated by spaces: {', '.join(REASONS)}"),
    Column("corrected", "text", "", "label that a person gave in the review, or `not_a_face`; empty if not reviewed"),
    Column(
        "agreement",
        "number",
        "0..1",
        "expected share of people who would choose `label`; empty if the model cannot tell",
    ),
    Column("notes", "text", "", NOTES_MEANING),
    Column("person", "integer", "", "number of the person in the video, from 1; empty for still images"),
)


def face_columns(journal: Journal) -> tuple[Column, ...]:
    """Columns of the rows of faces; at the end, those for the classes of the model that are not expressions."""
    names = {column.name for column in FACE_COLUMNS}
    own = (label for label in journal.expressions if f"p_{label}" not in names)
    return (
        *FACE_COLUMNS,
        *(Column(f"p_{label}", "number", "0..1", f"calibrated probability of {label}") for label in own),
    )


def face_rows(journal: Journal) -> Iterator[Row]:
    """One row per face, or one row with an empty `face` for an image without faces."""
    corrections = Corrections(journal.out)
    empty: Row = dict.fromkeys(column.name for column in face_columns(journal))
    for image in journal.results():
        shared = empty | {
            "file": image.name,
            "status": image.status,
            "detector": journal.detector,
            "model": journal.model,
            "reason": image.reason,
            "error": image.error,
            "frame": image.frame,
            "time_s": image.time_s,
            "image_width": image.width,
            "image_height": image.height,
            "file_sha256": image.sha256,
            "precision": journal.precision,
            "notes": " ".join(image.notes) or None,
        }
        if not image.faces:
            yield shared
        decided = corrections.of(image)
        for face in image.faces:
            row = shared | flat(face)
            row["person"] = face.person
            if (decision := decided.get(face.index)) is not None:
                row["corrected"] = decision.label
            yield row
