"""`timeline.csv` and `timeline.html`: expressions of each person in a video over time, as rows and as plots.

`mien review` names the people. Their probabilities are smoothed over time.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from html import escape
from pathlib import Path
from string import Template
from typing import IO, Final
from urllib.parse import quote

import numpy as np

from mien.app.inference.wording import percent
from mien.app.labeling.columns import Column, Row, with_own_classes
from mien.app.labeling.images import THUMBS, annotated_path
from mien.app.labeling.journal import Journal
from mien.app.labeling.outputs import open_output
from mien.app.labeling.outputs.csv import write_csv
from mien.app.labeling.pages import load_page, relative_link
from mien.app.labeling.people import RULES, People, moments
from mien.data.contract import EIGHT_LABELS, Array
from mien.data.contract.palette import hex_color

HELP: Final = "timeline.csv and .html: each person in a video over time"
IMAGES: Final = THUMBS  # people are recognized by them
TARGETS: Final = ("timeline.csv", "timeline.html")
REVIEWED: Final = True
PLOTTED_FRAMES: Final = 3
_POINTS: Final = 400
_WIDTH, _HEIGHT = 1000, 120
_TEMPLATE: Final = Path(__file__).with_name("timeline.html")

COLUMNS: Final[tuple[Column, ...]] = (
    Column("file", "text", "", "name of the video"),
    Column("person", "integer", "", "number of the person in the video, from 1, as tracked"),
    Column("frame", "integer", "", "frame number from 0"),
    Column("time_s", "number", "s", "time of the frame since the start of the video"),
    Column("face", "integer", "", "number of the face in its frame, as in `labels.csv`"),
    Column("label", "text", "", "most probable expression after smoothing; changes if another leads by 0.08"),
    Column("confidence", "number", "0..1", "smoothed probability of `label`"),
    *(
        Column(f"p_{label}", "number", "0..1", f"probability of {label}, smoothed over time (time constant 0.5 s)")
        for label in EIGHT_LABELS
    ),
    Column("name", "text", "", "name that was given to the person in the review"),
)


def render(journal: Journal) -> None:
    """Write the table and the page of plots."""
    table, page = TARGETS
    with open_output(journal, table) as file:
        write_csv(journal, file, with_own_classes(COLUMNS, journal), rows(journal))
    with open_output(journal, page) as file:
        write_page(journal, file)


def rows(journal: Journal) -> Iterator[Row]:
    """One row per person and frame."""
    people = People(journal.out)
    empty: Row = dict.fromkeys(column.name for column in with_own_classes(COLUMNS, journal))
    for name in journal.videos():
        names, _ = people.names(journal, name)
        for image, _ in moments(journal, name):
            for face in image.faces:
                row = empty | {"file": name, "person": face.track, "frame": image.frame}
                row |= {"time_s": image.input.time_s, "face": face.index}
                row |= {"label": face.label, "confidence": round(face.confidence, 6)}
                row |= {f"p_{label}": round(value, 6) for label, value in face.probabilities.items()}
                yield row | {"name": names.get(face.track) or None}


def write_page(journal: Journal, file: IO[str]) -> None:
    """Write the page of plots, video by video."""
    legend = "".join(
        f'<span><i style="background:{hex_color(label, journal.expressions)}"></i>{label}</span>'
        for label in journal.expressions
    )
    head, tail = (
        Template(load_page(_TEMPLATE))
        .substitute(
            legend=legend, smoothing_s=RULES.smoothing_s, return_s=RULES.return_s, least=PLOTTED_FRAMES, videos="\0"
        )
        .split("\0")
    )
    file.write(head)
    people, names = People(journal.out), journal.videos()
    for name in names:
        file.write(_video(journal, name, people.names(journal, name)[0]))
    file.write("" if names else "<p>No frame of a video was labeled.</p>")
    file.write(tail)


def _video(journal: Journal, name: str, people_names: dict[int, str]) -> str:
    persons: dict[int, list[tuple[float, float, Array]]] = defaultdict(list)  # time, allowed gap, probabilities (K,)
    times: list[tuple[int, float]] = []
    for image, gap_s in moments(journal, name):
        time_s = image.input.time_s or 0.0
        times.append((image.input.frame, time_s))
        for face in image.faces:
            persons[face.track].append((time_s, gap_s, np.array(list(face.probabilities.values()))))
    link, end_s = relative_link(image.input.path, journal.out), times[-1][1]
    # annotated copies if they are written: browsers play few formats of videos
    pictures = annotated_path(name, 0).removesuffix("frame_00000000.jpg")
    pictures = quote(pictures) if os.path.isdir(journal.out / pictures) else ""
    data = json.dumps({"pictures": pictures, "video": link, "end_s": end_s, "frames": times}).replace("<", "\\u003c")
    parts = [f"<section><h2>{escape(name)}</h2><script type=application/json>{data}</script><div class=seek></div>"]
    plotted = {number: seen for number, seen in sorted(persons.items()) if len(seen) >= PLOTTED_FRAMES}
    parts += [
        _person(people_names.get(number) or f"person {number}", seen, end_s, journal.expressions)
        for number, seen in plotted.items()
    ]
    if len(plotted) < len(persons):
        parts.append(f"<p class=sub>People in fewer than {PLOTTED_FRAMES} frames: {len(persons) - len(plotted)}.</p>")
    return "\n".join([*parts, "</section>"])


def _person(name: str, seen: list[tuple[float, float, Array]], end_s: float, labels: tuple[str, ...]) -> str:
    times_s, gaps_s, probabilities = (np.array(values) for values in zip(*seen, strict=True))
    mean = probabilities.mean(axis=0)
    order = [index for index in np.argsort(-mean)[:3] if mean[index] >= 0.01]
    most = ", ".join(f"{labels[index]} {percent(float(mean[index]))}" for index in order)
    span = f"{clock(times_s[0])} to {clock(times_s[-1])}, {len(seen):,} frames"
    ticks = "".join(f"<span>{clock(end_s * part / 4)}</span>" for part in range(5))
    # one polygon per expression and spell without a gap
    breaks = np.flatnonzero(np.diff(times_s) > gaps_s[1:]) + 1
    spells = zip(np.split(times_s, breaks), np.split(probabilities, breaks), strict=True)
    return (
        f"<h3>{escape(name)} <small>{span}; on average {most}</small></h3><div class=plot>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(name)}: stacked probabilities over time">'
        f"{''.join(_areas(*spell, end_s, labels) for spell in spells)}</svg></div><div class=axis>{ticks}</div>"
    )


def _areas(times_s: Array, probabilities: Array, end_s: float, labels: tuple[str, ...]) -> str:
    """One area per expression, stacked from the bottom, with at most `_POINTS` points.

    Args:
        times_s: (n,); probabilities: (n, K).
    """
    bins = np.array_split(np.arange(len(times_s)), min(len(times_s), _POINTS))
    x = _WIDTH * np.array([times_s[[part[0], part[-1]]].mean() for part in bins]) / max(end_s, 1e-9)
    probabilities = np.array([probabilities[part].mean(axis=0) for part in bins])
    if len(x) == 1:
        x, probabilities = np.array([x[0] - 1, x[0] + 1]), np.repeat(probabilities, 2, axis=0)
    edges = np.concatenate([np.zeros((len(x), 1)), np.cumsum(probabilities, axis=1)], axis=1).clip(0, 1)
    areas = ""
    for index, label in enumerate(labels):
        upper = [f"{a:.1f},{_HEIGHT * (1 - b):.1f}" for a, b in zip(x, edges[:, index + 1], strict=True)]
        lower = [f"{a:.1f},{_HEIGHT * (1 - b):.1f}" for a, b in zip(x, edges[:, index], strict=True)]
        points = " ".join(upper + lower[::-1])
        areas += f'<polygon fill="{hex_color(label, labels)}" points="{points}"><title>{label}</title></polygon>'
    return areas


def clock(seconds: float) -> str:
    """A time as `1:02:03`, `2:03` or, below a minute, `0:03.5`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours}:{minutes:02d}:{int(rest):02d}"
    return f"{minutes}:{int(rest):02d}" if minutes else f"0:{rest:04.1f}"
