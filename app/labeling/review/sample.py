"""Sample of faces that every reviewer labels without seeing the labels of the model, and a table of their decisions.

mien review out --sample 200 --reviewer anna
"""

import csv
import hashlib
import heapq
import io
import itertools
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Final

from mien.app.inference.records import Face
from mien.app.labeling.corrections import MIN_IOU, Correction, Corrections, decision
from mien.app.labeling.files import REVIEWS, LabelingError, disk_errors, quoted
from mien.app.labeling.journal import Journal, open_journal
from mien.app.labeling.outputs.csv import BYTE_ORDER_MARK, without_formula
from mien.app.labeling.records import STILL, Result
from mien.app.wording import counted
from mien.data.atomic import write_atomic

SAMPLE: Final = "sample.json"
_COLUMNS: Final = ("file", "frame", "face", "model")  # before those of the reviewers
_NAME: Final = re.compile(r"[\w.-]{1,40}")


def check_reviewer(name: str) -> None:
    """Check a reviewer's name, which is the name of a file. Raises: LabelingError."""
    if name in _COLUMNS:
        raise LabelingError(f"reviewer {name!r}: this is another column of the table of decisions. Choose another.")
    if _NAME.fullmatch(name) is None:
        raise LabelingError(f"reviewer {name!r}: expected a name of up to 40 letters, digits, dots, - and _.")


def draw_sample(out: Path, count: int) -> list[Correction]:
    """Faces of the sample, drawn and stored by the first call. Raises: LabelingError, for another number.

    The sample is stratified: each expression has the share that it has among the labels, and at least one face. Its
    faces are those with the smallest hashes, so the draw is repeatable. Copies of a photo count once.
    """
    path = out / REVIEWS / SAMPLE
    if faces := _read_sample(path):
        if len(faces) != count:
            raise LabelingError(
                f"{path} has a sample of {len(faces)} faces: add --sample {len(faces)}, or remove the folder {REVIEWS} "
                "to begin another one."
            )
        return faces
    with closing(open_journal(out)) as journal:
        counts: dict[str, int] = {}
        smallest: dict[str, list[Correction]] = {}
        for label in journal.labels():
            number = itertools.count()
            candidates = (face for face, _ in zip(_faces(journal, label), number, strict=False))
            smallest[label] = heapq.nsmallest(count, candidates, key=_digest)
            counts[label] = next(number)
    if count < len(counts):
        raise LabelingError(f"--sample {count}: {out} has {len(counts)} expressions, and each needs one face.")
    if sum(counts.values()) < count:
        raise LabelingError(f"--sample {count}: {out} has {counted(sum(counts.values()), 'different face')}.")
    chosen = (smallest[label][:share] for label, share in _strata(counts, count).items())
    drawn = sorted(itertools.chain(*chosen), key=_digest)
    with disk_errors(out):
        write_atomic(path, json.dumps({"faces": [asdict(face) for face in drawn]}, ensure_ascii=False))
    return drawn


def find(journal: Journal, drawn: Correction) -> tuple[Result, Face] | None:
    """A face of the sample, with its image, in the last run; None if the run does not have it."""
    image = journal.image_of(drawn.file_sha256, drawn.frame)
    face = max(image.faces, key=drawn.overlap, default=None) if image else None
    return None if image is None or face is None or drawn.overlap(face) < MIN_IOU else (image, face)


def _read_sample(path: Path) -> list[Correction]:
    if not path.exists():
        return []
    try:
        return [Correction(**values) for values in json.loads(path.read_text(encoding="utf-8"))["faces"]]
    except (ValueError, TypeError, KeyError) as error:
        raise LabelingError(f"{path} is damaged ({error}). Restore it: all reviewers label its faces.") from error


def _strata(counts: dict[str, int], total: int) -> dict[str, int]:
    """Faces per label in proportion to `counts`, at least one each. Source: Sainte-Laguë 1910 (Webster's method)."""
    strata = dict.fromkeys(counts, 1)
    for _ in range(total - len(strata)):
        strata[max(counts, key=lambda label: counts[label] / (strata[label] + 0.5))] += 1
    return strata


def _faces(journal: Journal, label: str) -> Iterator[Correction]:
    for image, face in journal.least_confident(label):
        if image.input.is_frame or journal.first_with_hash(image.sha256 or "") == image.input.name:  # no copy
            yield decision(image, face, label)


def _digest(face: Correction) -> str:
    return hashlib.sha256(f"{face.file_sha256} {face.frame} {face.box}".encode()).hexdigest()


def decisions_table(out: Path) -> str:
    """Decisions of all reviewers about the sample as CSV, one row per face, beside the label of the last run's model.

    Raises: LabelingError, if there is no sample.
    """
    faces = _read_sample(out / REVIEWS / SAMPLE)
    if not faces:
        raise LabelingError(f"{out} has no sample: mien review {quoted(out)} --sample 200 --reviewer NAME")
    reviewers = {path.stem: Corrections(out, path.stem) for path in sorted((out / REVIEWS).glob("*.jsonl"))}
    with closing(open_journal(out)) as journal:
        safe = journal.options.spreadsheet_safe
        file = io.StringIO(BYTE_ORDER_MARK if safe else "", newline="")
        file.seek(0, io.SEEK_END)
        table = csv.writer(file)
        table.writerow((*_COLUMNS, *reviewers))
        for face in faces:
            labels = [corrections.label_of(face) for corrections in reviewers.values()]
            match = find(journal, face)
            name = without_formula(face.file) if safe else face.file
            frame = None if face.frame == STILL else face.frame
            table.writerow((name, frame, face.face, match[1].label if match else None, *labels))
    return file.getvalue()
