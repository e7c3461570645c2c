"""`report.html`: a self-contained page with counts, the people of videos, faces (least certain first) and errors.

The page of `mien review` is the same one: there, faces come from the server, which saves decisions. In the file, they
are data of the page. Their number is limited, so the size of the file does not grow with the run.
"""

import base64
import json
import os
import re
from collections import Counter, defaultdict
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from mien import app
from mien.app.inference.records import Face
from mien.app.labeling.copies import ANNOTATED, annotated_name, open_output
from mien.app.labeling.inputs import is_url
from mien.app.labeling.journal import NOT_A_FACE, Correction, Journal, Result
from mien.data.contract import Array
from mien.data.contract.labels import hex_color
from mien.data.quality import REASONS

PER_LABEL: Final = 600
ERRORS: Final = 200
VIDEOS: Final = 50
PEOPLE: Final = 8
_TOGETHER_S: Final = 0.002  # Times are rounded to milliseconds.
# A strip has this size, and at most so many points per person.
_WIDTH, _HEIGHT, _POINTS = 1000, 100, 200
_PAGE: Final = Path(__file__).with_name("report.html")
_STYLE: Final = Path(app.__file__).parent / "static" / "page" / "page.css"

Spell = tuple[float, float, Array]  # A frame has a begin, an end, and probabilities (K,).


def write_report(journal: Journal) -> None:
    """Write `report.html`."""
    with open_output(journal.out, "report.html") as file:
        file.write(render_page(journal))


def render_page(journal: Journal, *, review: bool = False) -> str:
    """Render the page; for the review, without faces, which the server sends."""
    counts = journal.count()
    labels, statuses, expressions = counts["decided"], counts["images"], journal.expressions
    faces = None if review else _least_certain(journal)
    data = {
        "labels": [
            {"name": label, "count": labels[label], "color": hex_color(label, expressions)} for label in expressions
        ],
        "reasons": [{"name": name, "count": counts["reasons"][name]} for name in REASONS if counts["reasons"][name]],
        "counts": {
            **{name: counts[name] for name in ("photos", "videos", "frames", "uncertain", "reviewed")},
            **{name: statuses[name] for name in ("no_face", "error", "skipped")},
            "corrected": counts["corrected"] - labels[NOT_A_FACE],
            "not_a_face": labels[NOT_A_FACE],
        },
        "confidences": [counts["confidences"][str(tenth)] for tenth in range(10)],
        "faces": faces,
    }
    inputs = ", ".join(os.path.basename(path.rstrip("/")) for path in journal.settings.get("inputs", []))
    date = datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")
    strips = render_strips(journal)
    parts = {
        "style": _STYLE.read_text(encoding="utf-8"),
        "about": f"{escape(inputs)}, labeled <time>{date}</time>, model {escape(journal.model)} in "
        f"{escape(journal.precision)}, detector {escape(journal.detector)}.",
        "partial": "<p class=note>The run is not complete: this page shows the results so far.</p>"
        if len(set(journal.progress())) > 1
        else "",
        "videos": f"<h3>Videos</h3>{strips}" if strips else "",
        "bounded": f" The page has the {PER_LABEL} least certain faces of each expression."
        if faces is not None and len(faces) < labels.total() - labels[NOT_A_FACE]
        else "",
        "errors": _errors(journal),
        "data": json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),  # It is in a script element.
    }
    return re.sub(r"{{(\w+)}}", lambda match: parts[match[1]], _PAGE.read_text(encoding="utf-8"))


def _least_certain(journal: Journal) -> list[dict[str, Any]]:
    """Cards of the faces to show: of each label, by the decisions of the review, those least certain."""
    shown, cards = Counter[str](), []
    for image, face in journal.least_confident():
        correction = journal.corrections.of(image).get(face.index)
        label = face.label if correction is None else correction.label
        if label != NOT_A_FACE and shown[label] < PER_LABEL:
            shown[label] += 1
            thumb = base64.b64encode(journal.thumb(image, face.index)).decode()
            cards.append(card(journal, image, face, correction, thumb=f"data:image/jpeg;base64,{thumb}"))
    return cards


def card(journal: Journal, image: Result, face: Face, correction: Correction | None, *, thumb: str) -> dict[str, Any]:
    """A face for the page."""
    agreeing = None if face.agreement is None else round(10 * face.agreement)
    return {
        "file": image.name,
        "frame": image.frame,
        "where": "" if image.frame is None else f"frame {image.frame}, {image.time_s} s",
        "face": face.index,
        "box": [*face.box],
        "link": _link(journal, image),
        "label": face.label,
        "confidence": round(face.confidence, 4),
        "p": [round(float(share), 4) for share in face.probabilities.values()],
        "agreement": "" if agreeing is None else f"about {agreeing} of 10 people would say {face.label}",
        "uncertain": face.uncertain,
        "reasons": face.reasons,
        "decision": None if correction is None else correction.label,
        "thumb": thumb,
    }


def _link(journal: Journal, image: Result) -> str:
    """URL of the photo, relative to the report; otherwise of the annotated copy, if there is one."""
    if image.frame is None and (link := relative_link(image.path, journal.out)):
        return link
    copy = f"{ANNOTATED}/{annotated_name(image.name, image.frame)}"
    return quote(copy) if os.path.exists(journal.out / copy) else ""


def relative_link(path: bytes, out: Path) -> str:
    """Relative URL of a file for a page in the output folder, "" for an object of a store.

    It is "" also if it told names of folders that are not shared, because a page is passed on: `../photos/a.jpg` says
    nothing about its author, `../../home/anna/photos/a.jpg` does.
    """
    if is_url(path):
        return ""
    start = os.fsencode(out.absolute())
    try:
        common = os.path.commonpath([path, start])
    except ValueError:  # They may be on two drives of Windows.
        return ""
    if common == os.path.dirname(common) or common in map(os.fsencode, Path(os.path.expanduser("~")).parents):
        return ""
    return quote(os.path.relpath(path, start).replace(os.fsencode(os.sep), b"/"))


def _errors(journal: Journal) -> str:
    reasons, rows = Counter[str](), ""
    for image in (image for image in journal.results() if image.reason is not None):
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


# Strips: for every video, a picture of each person's expressions over time


def render_strips(journal: Journal) -> str:
    """HTML of the first videos, with the people who are in most of their frames; "" without a video."""
    names = journal.videos()
    more = f"<p class=sub>The first {VIDEOS} of {len(names):,} videos are shown.</p>" if len(names) > VIDEOS else ""
    return "".join(_strip(journal, name) for name in names[:VIDEOS]) + more


def _strip(journal: Journal, name: str) -> str:
    people: defaultdict[int, list[Spell]] = defaultdict(list)
    end_s = 0.0
    for image in journal.frames(name):
        begin_s, end_s = image.time_s or 0.0, image.until_s or 0.0
        for face in image.faces:
            people[face.person or 0].append((begin_s, end_s, np.array(list(face.probabilities.values()))))
    longest = sorted(sorted(people, key=lambda person: -len(people[person]))[:PEOPLE])
    rows = "".join(
        f"<tr><th>person {person}<td>{_picture(people[person], end_s, journal.expressions)}" for person in longest
    )
    ticks = "".join(f"<span>{_clock(end_s * part / 4)}</span>" for part in range(5))
    others = len(people) - len(longest)
    more = f"<p class=sub>{others:,} more, who are in fewer frames, are only in the tables.</p>" if others else ""
    return f"<h3>{escape(name)}</h3><table class=strip>{rows}<tr><th><td class=axis>{ticks}</table>{more}"


def _picture(seen: list[Spell], end_s: float, labels: tuple[str, ...]) -> str:
    """Stacked probabilities of one person, with a break wherever the person is away."""
    begins_s, ends_s, probabilities = (np.array(values) for values in zip(*seen, strict=True))
    breaks = np.flatnonzero(begins_s[1:] - ends_s[:-1] > _TOGETHER_S) + 1
    spells = zip(*(np.split(values, breaks) for values in (begins_s, ends_s, probabilities)), strict=True)
    areas = "".join(_areas(begins, ends, shares, end_s, labels) for begins, ends, shares in spells)
    mean = probabilities.mean(axis=0)
    most = ", ".join(f"{labels[index]} {mean[index]:.0%}" for index in np.argsort(-mean)[:3])
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="on average {most}">'
        f"{areas}</svg>"
    )


def _areas(begins_s: Array, ends_s: Array, probabilities: Array, end_s: float, labels: tuple[str, ...]) -> str:
    """One area per expression from the bottom to its upper edge, the highest first, so that the lower ones cover it.

    Args:
        begins_s, ends_s: (n,), of the frames of a person who is there all the time; probabilities: (n, K).
    """
    bins = np.array_split(np.arange(len(begins_s)), min(len(begins_s), _POINTS))
    middles_s = [(begins_s[part[0]] + ends_s[part[-1]]) / 2 for part in bins]
    x = _WIDTH * np.array([begins_s[0], *middles_s, ends_s[-1]]) / max(end_s, 1e-9)
    edges = np.cumsum([probabilities[part].mean(axis=0) for part in bins], axis=1).clip(0, 1)
    edges = edges[[0, *range(len(edges)), -1]]
    areas = ""
    for label, upper in reversed(list(zip(labels, edges.T, strict=True))):
        points = " ".join(f"{a:.1f},{_HEIGHT * (1 - b):.1f}" for a, b in zip(x, upper, strict=True))
        points += f" {x[-1]:.1f},{_HEIGHT} {x[0]:.1f},{_HEIGHT}"
        areas += f'<polygon fill="{hex_color(label, labels)}" points="{points}"><title>{label}</title></polygon>'
    return areas


def _clock(seconds: float) -> str:
    """A time as `1:02:03`, `2:03` or, below a minute, `0:03.5`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours}:{minutes:02d}:{int(rest):02d}"
    return f"{minutes}:{int(rest):02d}" if minutes else f"0:{rest:04.1f}"
