"""Faces of web pictures and press photos, labeled by a general vision-language model, for training.

Layout: `labels.csv` with `file` in `photos/`, and `press_labels.csv` with `file` in the folder `set`: `muxspace/` and
`people/`, copies of those sets. Both give a point of each face (`face_x`, `face_y`, pixels), `label`, `second` (the
rival of an arguable label) and `certainty`. `faces.csv` has the landmarks:

    mien label path/to/expressions --out found --write csv && cp found/labels.csv path/to/expressions/faces.csv

A label has a share of 0.94 if it is certain, and 0.6 beside 0.3 for the second if it is arguable; the other expressions
have equal parts of the rest. Recipes learn the shares with `target: votes`.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import ClassVar, Final, Literal

from mien.data.contract import LABELS, parse_label
from mien.data.readers.base import Point, Reader, ReaderOptions, Sample
from mien.data.readers.photos import landmarks_of

FACES: Final = "faces.csv"
_TABLES: Final = {"web": "labels.csv", "press": "press_labels.csv"}
_SHARES: Final = {"certain": (0.94, 0.0), "arguable": (0.6, 0.3)}  # of label and second
_Found = tuple[tuple[float, float, float, float], tuple[Point, ...]]  # box and landmarks


class ExpressionsOptions(ReaderOptions):
    """Options of expressions."""

    part: Literal["web", "press"] = "web"


class Expressions(Reader):
    """Reader of the labeled web and press faces; `person` is the source of a web picture, whose persons repeat."""

    kind: ClassVar[str] = "expressions"
    title: ClassVar[str] = "labeled faces of web and press photos"
    where_to_get: ClassVar[str] = (
        "Pictures of people with labels.csv, and faces.csv written by `mien label`; the module docstring of "
        "data/readers/expressions.py describes both"
    )
    terms: ClassVar[str] = "pictures of the web and of the press, whose owners keep the copyright"
    limits: ClassVar[str] = (
        "The web and press faces were labeled by a general vision-language model, not by people; most web faces are "
        "posed, and fear, disgust and surprise are rare among them."
    )

    Options = ExpressionsOptions

    def read(self) -> Iterator[Sample]:
        table = _TABLES[self.options.part]
        self.enter(table)
        found: defaultdict[str, list[_Found]] = defaultdict(list)
        for file, face in self.rows(FACES, _detected):
            found[file].append(face)

        def sample(row: dict[str, str]) -> Sample:
            file = f"{row.get('set', 'photos')}/{row['file']}"
            label = parse_label(row["label"], LABELS)
            second = parse_label(row["second"], LABELS) if row["second"] else None
            number = _face_at(found[file], float(row["face_x"]), float(row["face_y"]))
            if number is None:
                return Sample(file, "train", "no face found")
            shares = self._shares(label, second, row["certainty"])
            person = {"person": row["source"]} if "source" in row else {}
            return Sample(f"{file}#{number:03}", "train", label, shares, found[file][number][1], attributes=person)

        return self.rows(table, sample)

    def _shares(self, label: str, second: str | None, certainty: str) -> tuple[float, ...] | None:
        share, share_of_second = _SHARES[certainty]
        named = {label: share} | ({second: share_of_second} if second and share_of_second else {})
        rest = (1 - sum(named.values())) / (len(LABELS) - len(named))
        return self.distribution(dict.fromkeys(LABELS, rest) | named)


def _detected(row: dict[str, str]) -> tuple[str, _Found] | None:
    if not row["face"]:
        return None
    x, y, width, height = (float(row[name]) for name in ("x", "y", "width", "height"))
    return row["file"], ((x, y, width, height), landmarks_of(row))


def _face_at(faces: list[_Found], x: float, y: float) -> int | None:
    """Number of the face whose box contains a point, of several the one with the nearest center."""
    distances = {
        number: math.hypot(left + width / 2 - x, top + height / 2 - y)
        for number, ((left, top, width, height), _) in enumerate(faces)
        if left <= x <= left + width and top <= y <= top + height
    }
    return min(distances, key=lambda number: distances[number], default=None)
