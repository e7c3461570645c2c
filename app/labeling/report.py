"""Content of `report.html`: results of a run to inspect, from the journal.

Faces are embedded as data, and a script creates cards while scrolling. The number of faces is limited, so the size of
the page does not grow with the run.
"""

import base64
import heapq
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final
from urllib.parse import quote

from mien.app.inference.pipeline import LabeledFace
from mien.app.labeling.images import annotated_path
from mien.app.labeling.pages import load_page, relative_link
from mien.app.labeling.records import Result, images_of
from mien.app.labeling.store import is_url
from mien.app.labeling.view import View
from mien.data.contract import EIGHT_LABELS
from mien.data.contract.palette import hex_color
from mien.data.quality import REASONS

PER_LABEL: Final = 600
ERRORS: Final = 200
_TEMPLATE: Final = Path(__file__).with_name("report.html")
_BINS: Final = 10


@dataclass(order=True, slots=True)
class Shown:
    """A face that may be shown, ordered so that a heap drops the most confident face."""

    doubt: float
    image: Result = field(compare=False)
    face: LabeledFace = field(compare=False)

    @property
    def order(self) -> tuple[float, str, int, int]:
        """Sort key: by displayed confidence, then by name."""
        return round(-self.doubt, 4), self.image.input.name, self.image.input.frame, self.face.number


@dataclass(slots=True)
class Gathered:
    """Result of one pass over the journal; all lists are bounded."""

    statuses: Counter[str] = field(default_factory=Counter)
    labels: Counter[str] = field(default_factory=Counter)
    uncertain: int = 0
    doubts: Counter[str] = field(default_factory=Counter)  # faces by reason for doubt
    confidence: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    by_label: dict[str, list[Shown]] = field(default_factory=lambda: {label: [] for label in EIGHT_LABELS})
    errors: list[Result] = field(default_factory=list)


def gather(view: View) -> Gathered:
    """Collect the data in one pass over all images."""
    gathered = Gathered()
    for image in view.images():
        gathered.statuses[image.status] += 1
        if image.reason:
            gathered.reasons[image.reason] += 1
            if len(gathered.errors) < ERRORS:
                gathered.errors.append(image)
        for face in image.faces:
            _add_face(gathered, Shown(-face.confidence, image, face))
    return gathered


def _add_face(gathered: Gathered, shown: Shown) -> None:
    face = shown.face
    gathered.labels[face.label] += 1
    gathered.uncertain += face.uncertain
    gathered.doubts.update(face.reasons)
    gathered.confidence[min(_BINS - 1, int(face.confidence * _BINS))] += 1
    kept = gathered.by_label[face.label]
    if len(kept) < PER_LABEL:
        heapq.heappush(kept, shown)
    elif kept[0] < shown:  # of equal faces, the first by name is kept
        heapq.heapreplace(kept, shown)


def render_page(view: View) -> str:
    """Render the page."""
    gathered = gather(view)
    faces = sum(gathered.labels.values())
    shown = sorted((one for kept in gathered.by_label.values() for one in kept), key=lambda one: one.order)
    return Template(load_page(_TEMPLATE)).substitute(
        model=escape(view.model),
        precision=escape(view.precision),
        detector=escape(view.detector),
        inputs=escape(", ".join(os.path.basename(path.rstrip("/")) for path in view.inputs)),
        date=datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        partial="<p class=note>The run is not complete: this page shows the results so far.</p>"
        if view.remaining()
        else "",
        tiles=_tiles(gathered, faces),
        labels=_label_bars(gathered, faces, view.expressions),
        histogram=_histogram(gathered, faces),
        options="".join(f"<option value={one}>{one} ({gathered.labels[one]:,})" for one in view.expressions),
        doubts="".join(
            f"<option value={one}>{one} ({gathered.doubts[one]:,})" for one in REASONS if gathered.doubts[one]
        ),
        bounded=f" The page has the {PER_LABEL} least certain faces of each expression." if len(shown) < faces else "",
        data=_data(view, shown),
        errors=_errors(gathered),
    )


def _data(view: View, shown: list[Shown]) -> str:
    """The cards as JSON that is safe inside a script element."""
    colors = {label: hex_color(label) for label in view.expressions}
    cards = ",\n".join(json.dumps(_card(view, one), separators=(",", ":")) for one in shown)
    return f'{{"colors":{json.dumps(colors)},"faces":[\n{cards}]}}'.replace("<", "\\u003c")


def _card(view: View, one: Shown) -> dict[str, Any]:
    image, face = one.image, one.face
    return {
        "file": image.input.name,
        "where": _where(image, face),
        "link": _link(view, image),
        "label": face.label,
        "p": [round(float(p), 4) for p in face.probabilities],
        "uncertain": face.uncertain,
        "reasons": face.reasons,
        "thumb": base64.b64encode(view.thumb(image.input.row or 0, face.number) or b"").decode(),
    }


def _where(image: Result, face: LabeledFace) -> str:
    if image.frame is None:
        return f"face {face.number}"
    return f"page {image.frame}" if image.input.time_s is None else f"frame {image.frame}, {image.input.time_s} s"


def _link(view: View, image: Result) -> str:
    """URL of the photo, relative to the report; otherwise of the annotated copy, if there is one."""
    if image.input.kind == "file" and not is_url(image.input.path):
        link = relative_link(image.input.path, view.out)
        if link:
            return quote(os.fsencode(link))
    copy = annotated_path(image.input.name, image.input.frame)
    return quote(copy) if os.path.exists(view.out / copy) else ""


def _tiles(gathered: Gathered, faces: int) -> str:
    tiles = {
        "images": images_of(gathered.statuses),
        "faces": faces,
        "uncertain": gathered.uncertain,
        "without a face": gathered.statuses["no_face"],
        "with an error": gathered.statuses["error"],
        "files skipped": gathered.statuses["skipped"],
    }
    return "".join(f"<div class=tile><b>{value:,}</b>{name}</div>" for name, value in tiles.items())


def _label_bars(gathered: Gathered, faces: int, expressions: tuple[str, ...]) -> str:
    most = max(gathered.labels.values(), default=1)
    rows = ""
    for label in expressions:
        count = gathered.labels[label]
        share = f"{count / faces:.1%}" if faces else "-"
        rows += (
            f'<tr><th><a href="#label={label}">{label}</a><td class=share><i style="width:{100 * count / most:.1f}%;'
            f'background:{hex_color(label)}"></i><td>{count:,}<td>{share}'
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


def _errors(gathered: Gathered) -> str:
    if not gathered.errors:
        return "<p>None.</p>"
    counts = ", ".join(f"{escape(reason)}: {count:,}" for reason, count in sorted(gathered.reasons.items()))
    total = sum(gathered.reasons.values())
    more = f" The first {len(gathered.errors)} of {total:,} are shown." if total > len(gathered.errors) else ""
    rows = "".join(
        f"<tr><td>{escape(one.input.name)}<td>{one.status}<td>{escape(one.reason or '')}<td>{escape(one.error or '')}"
        for one in gathered.errors
    )
    return f"<p>{counts}.{more}</p><table class=list><tr><th>file<th>status<th>reason<th>message{rows}</table>"
