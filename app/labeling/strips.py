"""Strips of the report: for every video, a picture of each person's expressions over time, as inline SVG."""

from collections import defaultdict
from html import escape
from typing import Final

import numpy as np

from mien.app.labeling.journal import Journal
from mien.data.contract import Array
from mien.data.contract.palette import hex_color

VIDEOS: Final = 50
PEOPLE: Final = 8
_POINTS: Final = 200
_TOGETHER_S: Final = 0.002  # times are rounded to milliseconds
_WIDTH, _HEIGHT = 1000, 100

Spell = tuple[float, float, Array]  # begin and end of a frame, probabilities (K,)


def render_strips(journal: Journal) -> str:
    """HTML of the first videos, with the people who are in most of their frames; "" without a video."""
    names = journal.videos()
    more = f"<p class=sub>The first {VIDEOS} of {len(names):,} videos are shown.</p>" if len(names) > VIDEOS else ""
    return "".join(_strip(journal, name) for name in names[:VIDEOS]) + more


def _strip(journal: Journal, name: str) -> str:
    people: dict[int, list[Spell]] = defaultdict(list)
    end_s = 0.0
    for image in journal.results(name):
        if image.frame is None:
            continue
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
