"""Timelines of videos: expressions of each person over time, as rows and as a page of plots.

Faces of a person are tracked from frame to frame by IoU, and their probabilities are smoothed over time. A person who
was not visible for longer than `RULES.lost_s` gets a new number.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from string import Template
from typing import IO, Final

import numpy as np

from mien.app.inference.pipeline import LabeledFace
from mien.app.inference.tracking import Tracker, TrackingRules
from mien.app.inference.wording import percent
from mien.app.labeling.columns import Column, Row
from mien.app.labeling.records import Result
from mien.app.labeling.view import View
from mien.data.contract import EIGHT_LABELS, Array, by_label
from mien.data.contract.palette import hex_color

RULES: Final = TrackingRules(settle_s=0.5)
# With sparse sampling, a person may be missed in this many frames.
_MISSED_FRAMES: Final = 2.5
PLOTTED_FRAMES: Final = 3
_POINTS: Final = 400
_WIDTH, _HEIGHT = 1000, 120
_TEMPLATE: Final = Path(__file__).with_name("timeline.html")

COLUMNS: Final[tuple[Column, ...]] = (
    Column("file", "text", "", "name of the video"),
    Column("person", "integer", "", "number of the person in the video, from 1; tracked from frame to frame"),
    Column("frame", "integer", "", "frame number from 0"),
    Column("time_s", "number", "s", "time of the frame since the start of the video"),
    Column("face", "integer", "", "number of the face in its frame, as in `labels.csv`"),
    Column("label", "text", "", "most probable expression after smoothing; changes if another leads by 0.08"),
    Column("confidence", "number", "0..1", "smoothed probability of `label`"),
    *(
        Column(f"p_{label}", "number", "0..1", f"probability of {label}, smoothed over time (time constant 0.5 s)")
        for label in EIGHT_LABELS
    ),
)


@dataclass(frozen=True, slots=True)
class Moment:
    """One frame of a video with its people; `gap_s` is the maximum time that a person may be missed."""

    image: Result
    gap_s: float
    faces: list[LabeledFace]

    @property
    def time_s(self) -> float:
        """Seconds since the start of the video."""
        return self.image.input.time_s or 0.0


def videos(view: View) -> Iterator[tuple[str, Iterator[Moment]]]:
    """Name and frames of each video, sorted by name."""
    frames = (image for image in view.images() if image.input.is_frame)
    for name, images in itertools.groupby(frames, key=lambda image: image.input.name):
        yield name, _moments(images, float(view.facts.get("abstain_threshold", 0)))


def _moments(images: Iterator[Result], threshold: float) -> Iterator[Moment]:
    tracker, last_s = Tracker(threshold, RULES), 0.0
    for image in images:
        time_s = image.input.time_s or 0.0
        gap_s = max(RULES.lost_s, _MISSED_FRAMES * (time_s - last_s))
        tracker.rules = replace(RULES, lost_s=gap_s, slow_s=gap_s)
        yield Moment(image, gap_s, tracker.update(image.faces, time_s))
        last_s = time_s


def rows(view: View) -> Iterator[Row]:
    """One row per person and frame."""
    for name, moments in videos(view):
        for moment in moments:
            for face in moment.faces:
                row: Row = {"file": name, "person": face.track, "frame": moment.image.frame}
                row |= {"time_s": moment.time_s, "face": face.number}
                row |= {"label": face.label, "confidence": round(face.confidence, 6)}
                p = by_label(face.probabilities)
                yield row | {f"p_{label}": round(p[label], 6) if label in p else None for label in EIGHT_LABELS}


@dataclass(slots=True)
class Person:
    """Data to plot for one person: times (n,), allowed gaps (n,), smoothed probabilities (n, 7)."""

    times_s: list[float]
    gaps_s: list[float]
    probabilities: list[Array]


def write_page(view: View, file: IO[str]) -> None:
    """Write the page of plots, video by video."""
    legend = "".join(f'<span><i style="background:{hex_color(label)}"></i>{label}</span>' for label in view.expressions)
    head, tail = (
        Template(_TEMPLATE.read_text(encoding="utf-8"))
        .substitute(legend=legend, settle_s=RULES.settle_s, lost_s=RULES.lost_s, least=PLOTTED_FRAMES, videos="\0")
        .split("\0")
    )
    file.write(head)
    empty = True
    for name, moments in videos(view):
        empty = False
        file.write(_video(name, moments))
    file.write("<p>No frame of a video was labeled.</p>" if empty else "")
    file.write(tail)


def _video(name: str, moments: Iterator[Moment]) -> str:
    persons: dict[int, Person] = {}
    end_s = 0.0
    for moment in moments:
        end_s = moment.time_s
        for face in moment.faces:
            person = persons.setdefault(face.track, Person([], [], []))
            person.times_s.append(moment.time_s)
            person.gaps_s.append(moment.gap_s)
            person.probabilities.append(face.probabilities)
    shown = {number: one for number, one in persons.items() if len(one.times_s) >= PLOTTED_FRAMES}
    parts = [f"<h2>{escape(name)}</h2>"]
    parts += [_person(number, person, end_s) for number, person in shown.items()]
    if len(shown) < len(persons):
        parts.append(f"<p class=sub>People in fewer than {PLOTTED_FRAMES} frames: {len(persons) - len(shown)}.</p>")
    return "\n".join(parts)


def _person(number: int, person: Person, end_s: float) -> str:
    mean = np.mean(person.probabilities, axis=0)
    order = [place for place in np.argsort(-mean)[:3] if mean[place] >= 0.01]
    most = ", ".join(f"{EIGHT_LABELS[place]} {percent(float(mean[place]))}" for place in order)
    span = f"{clock(person.times_s[0])} to {clock(person.times_s[-1])}, {len(person.times_s):,} frames"
    ticks = "".join(f"<span>{clock(end_s * part / 4)}</span>" for part in range(5))
    return (
        f'<h3>person {number} <small>{span}; on average {most}</small></h3><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'preserveAspectRatio="none" role="img" aria-label="person {number}: stacked probabilities over time">'
        f"{''.join(_areas(part, end_s) for part in _spells(person))}</svg><div class=axis>{ticks}</div>"
    )


def _spells(person: Person) -> Iterator[tuple[Array, Array]]:
    """Times (n,) and probabilities (n, 7) without gaps, reduced to at most `_POINTS` points."""
    times, stacked = np.array(person.times_s), np.array(person.probabilities)
    breaks = np.flatnonzero(np.diff(times) > np.array(person.gaps_s)[1:]) + 1
    for part_s, part in zip(np.split(times, breaks), np.split(stacked, breaks), strict=True):
        bins = np.array_split(np.arange(len(part_s)), min(len(part_s), _POINTS))
        yield (
            np.array([part_s[[one[0], one[-1]]].mean() for one in bins]),
            np.array([part[one].mean(axis=0) for one in bins]),
        )


def _areas(spell: tuple[Array, Array], end_s: float) -> str:
    """One area per expression, stacked from the bottom."""
    times_s, probabilities = spell
    x = _WIDTH * times_s / max(end_s, 1e-9)
    if len(x) == 1:
        x, probabilities = np.array([x[0] - 1, x[0] + 1]), np.repeat(probabilities, 2, axis=0)
    edges = np.concatenate([np.zeros((len(x), 1)), np.cumsum(probabilities, axis=1)], axis=1).clip(0, 1)
    areas = ""
    for place, label in enumerate(EIGHT_LABELS[: probabilities.shape[1]]):
        upper = [f"{a:.1f},{_HEIGHT * (1 - b):.1f}" for a, b in zip(x, edges[:, place + 1], strict=True)]
        lower = [f"{a:.1f},{_HEIGHT * (1 - b):.1f}" for a, b in zip(x, edges[:, place], strict=True)]
        points = " ".join(upper + lower[::-1])
        areas += f'<polygon fill="{hex_color(label)}" points="{points}"><title>{label}</title></polygon>'
    return areas


def clock(seconds: float) -> str:
    """A time as `1:02:03`, `2:03` or, below a minute, `0:03.5`."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours}:{minutes:02d}:{int(rest):02d}"
    return f"{minutes}:{int(rest):02d}" if minutes else f"0:{rest:04.1f}"
