"""The page behind `report.html`: what a person should look at after a run; made from the journal alone.

Only the thumbnails shown are read, so a page over a million faces is as small as one over a thousand.
"""

import base64
import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from string import Template
from typing import Final

from app.inference.wording import percent
from app.labeling.journal import Picture, View
from app.labeling.records import FaceRecord, pictures_of
from data.contract import LABELS
from data.contract.palette import hex_color

PER_LABEL: Final = 48
WEAK: Final = 48
ERRORS: Final = 200
BLURRED: Final = 20.0
SMALL_PX: Final = 24.0
TURNED_DEGREES: Final = 45.0
_TEMPLATE: Final = Path(__file__).with_name("report.html")
_BINS: Final = 10


@dataclass(order=True, slots=True)
class Shown:
    """A face that may be shown; ordered so that a heap drops what interests least."""

    interest: float
    name: str = field(compare=False)
    frame: int | None = field(compare=False)
    number: int = field(compare=False)
    row: int = field(compare=False)
    face: FaceRecord = field(compare=False)
    note: str = field(compare=False, default="")


@dataclass(slots=True)
class Gathered:
    """What one pass over the journal collects; every list is bounded."""

    statuses: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    uncertain: int = 0
    confidence: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    by_label: dict[str, list[Shown]] = field(default_factory=lambda: {label: [] for label in LABELS})
    weak: list[Shown] = field(default_factory=list)
    weak_count: int = 0
    errors: list[Picture] = field(default_factory=list)


def weaknesses(face: FaceRecord) -> list[str]:
    """Why a face's label may mean little: small, blurred, turned; empty for a good one."""
    side = min(face.box_px[2:])
    found = [f"{side:.0f} px"] if side < SMALL_PX else []
    found += [f"sharpness {face.sharpness:.0f}"] if face.sharpness < BLURRED else []
    found += [f"roll {face.roll_degrees:.0f}\N{DEGREE SIGN}"] if abs(face.roll_degrees) > TURNED_DEGREES else []
    return found


def gather(view: View) -> Gathered:
    """Go once over all pictures."""
    gathered = Gathered()
    for picture in view.pictures():
        gathered.statuses[picture.status] += 1
        if picture.reason:
            gathered.reasons[picture.reason] += 1
            if len(gathered.errors) < ERRORS:
                gathered.errors.append(picture)
        for face in picture.faces:
            _add_face(gathered, picture, face)
    return gathered


def _add_face(gathered: Gathered, picture: Picture, face: FaceRecord) -> None:
    gathered.labels[face.label] += 1
    gathered.uncertain += face.uncertain
    gathered.confidence[min(_BINS - 1, int(face.confidence * _BINS))] += 1
    shown = Shown(-face.confidence, picture.name, picture.frame_or_none, face.number, picture.row, face)
    _keep(gathered.by_label[face.label], shown, PER_LABEL)
    notes = weaknesses(face)
    if notes:
        gathered.weak_count += 1
        weak = replace(shown, interest=-face.sharpness, note=", ".join(notes))
        _keep(gathered.weak, weak, WEAK)


def _keep(kept: list[Shown], shown: Shown, limit: int) -> None:
    """Hold the most interesting; of equals the first, as pictures come in the order of names."""
    if len(kept) < limit:
        heapq.heappush(kept, shown)
    elif kept[0] < shown:
        heapq.heapreplace(kept, shown)


def render_page(view: View) -> str:
    """The whole page as text."""
    gathered = gather(view)
    faces = sum(gathered.labels.values())
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        model=escape(view.model),
        precision=escape(view.precision),
        detector=escape(view.detector),
        partial=""
        if not view.remaining()
        else "<p class=note>The run is not complete: this page shows what is done.</p>",
        tiles=_tiles(gathered, faces),
        labels=_label_bars(gathered, faces),
        histogram=_histogram(gathered, faces),
        sections="".join(_section(view, label, gathered) for label in LABELS if gathered.labels[label]),
        weak=_weak(view, gathered),
        errors=_errors(gathered),
    )


def _tiles(gathered: Gathered, faces: int) -> str:
    tiles = {
        "pictures": pictures_of(gathered.statuses),
        "faces": faces,
        "uncertain": gathered.uncertain,
        "without a face": gathered.statuses["no_face"],
        "errors": gathered.statuses["error"],
        "files skipped": gathered.statuses["skipped"],
    }
    return "".join(f"<div class=tile><b>{value:,}</b>{name}</div>" for name, value in tiles.items())


def _label_bars(gathered: Gathered, faces: int) -> str:
    most = max(gathered.labels.values(), default=1)
    rows = ""
    for label in LABELS:
        count = gathered.labels[label]
        share = f"{count / faces:.1%}" if faces else "-"
        link = f'<a href="#{label}">{label}</a>' if count else label
        rows += (
            f'<tr><th>{link}<td class=bar><i style="width:{100 * count / most:.1f}%;background:{hex_color(label)}"></i>'
            f"<td>{count:,}<td>{share}"
        )
    return rows


def _histogram(gathered: Gathered, faces: int) -> str:
    most = max(gathered.confidence.values(), default=1)
    bars = ""
    for number in range(_BINS):
        count = gathered.confidence[number]
        title = f"{number * 10} to {number * 10 + 10} %: {count:,} faces"
        bars += f'<span title="{title}"><i style="height:{100 * count / most:.1f}%"></i>{number * 10}</span>'
    return bars if faces else ""


def _section(view: View, label: str, gathered: Gathered) -> str:
    shown = sorted(gathered.by_label[label], key=lambda one: (-one.interest, one.name, one.frame or 0, one.number))
    count = gathered.labels[label]
    what = f"{count:,} face{'s' if count != 1 else ''}"
    what += f", the {len(shown)} least certain first" if len(shown) < count else ", the least certain first"
    return (
        f'<h2 id="{label}"><i style="background:{hex_color(label)}"></i>{label} <small>{what}</small></h2>'
        f"<div class=grid>{_cards(view, shown)}</div>"
    )


def _cards(view: View, shown: Iterable[Shown]) -> str:
    return "".join(_card(view, one) for one in shown)


def _card(view: View, one: Shown) -> str:
    thumb = view.thumb(one.row, one.number)
    source = f"data:image/jpeg;base64,{base64.b64encode(thumb).decode()}" if thumb else ""
    order = sorted(zip(LABELS, one.face.probabilities.tolist(), strict=True), key=lambda pair: -pair[1])
    second = f"{order[1][0]} {percent(order[1][1])}"
    where = one.name if one.frame is None else f"{one.name}, frame {one.frame}"
    mark = " class=doubt" if one.face.uncertain else ""
    title = escape(f"{where}, face {one.number}: " + ", ".join(f"{name} {p:.1%}" for name, p in order), quote=True)
    note = escape(one.note) if one.note else f"then {second}"
    return (
        f'<figure{mark} title="{title}"><img loading=lazy alt="" src="{source}"><figcaption>'
        f"<b>{one.face.label} {percent(one.face.confidence)}</b><span>{note}</span>"
        f"<span class=file>{escape(where)}</span></figcaption></figure>"
    )


def _weak(view: View, gathered: Gathered) -> str:
    if not gathered.weak:
        return "<p>None: every face is at least 24 px, sharp and near upright.</p>"
    shown = sorted(gathered.weak, key=lambda one: (-one.interest, one.name, one.frame or 0, one.number))
    return (
        f"<p>{gathered.weak_count:,} faces are smaller than {SMALL_PX:.0f} px, blurred (sharpness below {BLURRED:.0f}) "
        f"or turned by more than {TURNED_DEGREES:.0f}\N{DEGREE SIGN}; the most blurred first.</p>"
        f"<div class=grid>{_cards(view, shown)}</div>"
    )


def _errors(gathered: Gathered) -> str:
    if not gathered.errors:
        return "<p>None.</p>"
    counts = ", ".join(f"{escape(reason)}: {count:,}" for reason, count in sorted(gathered.reasons.items()))
    total = sum(gathered.reasons.values())
    more = f" The first {len(gathered.errors)} of {total:,} are shown." if total > len(gathered.errors) else ""
    rows = "".join(
        f"<tr><td>{escape(one.name)}<td>{one.status}<td>{escape(one.reason or '')}<td>{escape(one.error or '')}"
        for one in gathered.errors
    )
    return f"<p>{counts}.{more}</p><table class=list><tr><th>file<th>status<th>reason<th>what happened{rows}</table>"
