"""`report.html`: a self-contained page with counts, thumbnails (least certain first), errors and low-quality faces.

Faces are embedded as data, and a script creates cards while scrolling. The number of faces is limited, so the size of
the page does not grow with the run.
"""

import base64
import itertools
import json
import os
from collections import Counter
from datetime import datetime
from html import escape
from pathlib import Path
from string import Template
from typing import Any, Final
from urllib.parse import quote

from mien.app.inference.face_text import agreement_text
from mien.app.inference.records import Face
from mien.app.labeling.corrections import Corrections
from mien.app.labeling.images import THUMBS, annotated_path
from mien.app.labeling.journal import Journal, Result
from mien.app.labeling.outputs import open_output
from mien.app.labeling.pages import load_page, relative_link
from mien.app.labeling.strips import render_strips
from mien.app.wording import counted
from mien.data.contract.palette import hex_color
from mien.data.quality import REASONS

HELP: Final = "report.html: one page with thumbnails, errors and uncertain faces"
IMAGES: Final = THUMBS
TARGETS: Final = ("report.html",)
REVIEWED: Final = True
PER_LABEL: Final = 600
ERRORS: Final = 200
_TEMPLATE: Final = Path(__file__).with_name("report.html")


def render(journal: Journal) -> None:
    """Write `report.html`."""
    with open_output(journal, TARGETS[0]) as file:
        file.write(render_page(journal))


def render_page(journal: Journal) -> str:
    """Render the page."""
    counts = journal.count()
    labels, reasons = counts["faces"], counts["reasons"]
    least = itertools.chain.from_iterable(
        journal.least_confident(label, limit=PER_LABEL) for label in journal.expressions
    )
    shown = sorted(least, key=lambda pair: (round(pair[1].confidence, 4), pair[0].name, pair[0].frame or 0))
    corrections = Corrections(journal.out)
    data = {
        "colors": {label: hex_color(label, journal.expressions) for label in journal.expressions},
        "faces": [_card(journal, corrections, image, face) for image, face in shown],
    }
    return Template(load_page(_TEMPLATE)).substitute(
        model=escape(journal.model),
        precision=escape(journal.precision),
        detector=escape(journal.detector),
        inputs=escape(", ".join(os.path.basename(path.rstrip("/")) for path in journal.settings.get("inputs", {}))),
        date=datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        partial="<p class=note>The run is not complete: this page shows the results so far.</p>"
        if len(set(journal.progress())) > 1
        else "",
        tiles=_tiles(counts, corrections.count(journal)[0]),
        labels=_label_bars(labels, journal.expressions),
        histogram=_histogram(counts["confidences"]),
        options="".join(f"<option value={label}>{label} ({labels[label]:,})" for label in journal.expressions),
        doubts="".join(
            f"<option value={reason}>{reason} ({reasons[reason]:,})" for reason in REASONS if reasons[reason]
        ),
        bounded=f" The page has the {PER_LABEL} least certain faces of each expression."
        if len(shown) < labels.total()
        else "",
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),  # safe inside a script element
        videos=f"<h2>Videos</h2>{strips}" if (strips := render_strips(journal)) else "",
        errors=_errors(journal),
    )


def _card(journal: Journal, corrections: Corrections, image: Result, face: Face) -> dict[str, Any]:
    decision = corrections.of_face(journal, image, face)
    where = f"face {face.index}" if image.frame is None else f"frame {image.frame}, {image.time_s} s"
    return {
        "file": image.name,
        "where": where,
        "link": _link(journal, image),
        "label": face.label,
        "p": [round(float(p), 4) for p in face.probabilities.values()],
        "agreement": agreement_text(face),
        "uncertain": face.uncertain,
        "reasons": face.reasons,
        "corrected": decision.label if decision else "",
        "thumb": base64.b64encode(journal.thumb(image.name, image.frame, face.index) or b"").decode(),
    }


def _link(journal: Journal, image: Result) -> str:
    """URL of the photo, relative to the report; otherwise of the annotated copy, if there is one."""
    if image.frame is None and (link := relative_link(image.path, journal.out)):
        return link
    copy = annotated_path(image.name, image.frame)
    return quote(copy) if os.path.exists(journal.out / copy) else ""


def _tiles(counts: dict[str, Any], reviewed: int) -> str:
    statuses = counts["images"]
    tiles = [
        counted(statuses.total() - statuses["skipped"], "image"),
        counted(counts["faces"].total(), "face"),
        f"{counts['uncertain']:,} uncertain",
        f"{reviewed:,} reviewed",
        f"{statuses['no_face']:,} without a face",
        f"{statuses['error']:,} with an error",
        f"{counted(statuses['skipped'], 'file')} skipped",
    ]
    return "".join("<div class=tile><b>{}</b>{}</div>".format(*tile.split(" ", 1)) for tile in tiles)


def _label_bars(labels: Counter[str], expressions: tuple[str, ...]) -> str:
    most, faces = max(labels.values(), default=1), labels.total()
    rows = ""
    for label in expressions:
        count = labels[label]
        share = f"{count / faces:.1%}" if faces else "-"
        rows += (
            f'<tr><th><a href="#label={label}">{label}</a><td class=share><i style="width:{100 * count / most:.1f}%;'
            f'background:{hex_color(label, expressions)}"></i><td>{count:,}<td>{share}'
        )
    return rows


def _histogram(confidences: Counter[str]) -> str:
    most, bars = max(confidences.values(), default=0), ""
    for tenth in range(10) if most else ():
        count = confidences[str(tenth)]
        title = f"{tenth * 10} to {tenth * 10 + 10} %: {counted(count, 'face')}"
        bars += f'<span title="{title}"><i style="height:{100 * count / most:.1f}%"></i>{tenth * 10}</span>'
    return bars


def _errors(journal: Journal) -> str:
    reasons, rows = Counter[str](), ""
    for image in journal.results():
        if image.reason is None:
            continue
        reasons[image.reason or ""] += 1
        if reasons.total() <= ERRORS:
            cells = (image.name, image.status, image.reason or "", image.error or "")
            rows += f"<tr><td>{'<td>'.join(map(escape, cells))}"
    if not rows:
        return "<p>None.</p>"
    counts = ", ".join(f"{escape(reason)}: {count:,}" for reason, count in sorted(reasons.items()))
    total = reasons.total()
    more = f" The first {ERRORS} of {total:,} are shown." if total > ERRORS else ""
    return f"<p>{counts}.{more}</p><table class=list><tr><th>file<th>status<th>reason<th>message{rows}</table>"
