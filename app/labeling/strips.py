"""Strips of the report: for every video, a picture of each person's expressions over time, as inline SVG."""

from collections import defaultdict
from html import escape
from typing import Final

import numpy as np

from mien.app.labeling.journal import Journal
from mien.app.labeling.people import moments
from mien.data.contract import Array
from mien.data.contract.palette import hex_color

VIDEOS: Final = 50
PEOPLE: Final = 8
_POINTS: Final = 200
_WIDTH, _HEIGHT = 1000, 100


def render_strips(journal: Journal) -> str:
    """HTML of the first videos, with the people who are in most of their frames; "" without a video."""
    names = journal.videos()
    more = f"<p class=sub>The first {VIDEOS} of {len(names):,} videos are shown.</p>" if len(names) > VIDEOS else ""
    return "".join(_strip(journal, name) for name in names[:VIDEOS]) + more


def _strip(journal: Journal, name: str) -> str:
    people: dict[int, list[tuple[float, float, Array]]] = defaultdict(list)  # time, allowed gap, probabilities (K,)
    end_s = 0.0
    for image, gap_s in moments(journal, name):
        end_s = image.input.time_s or 0.0
        for face in image.faces:
            people[face.person or 0].append((end_s, gap_s, np.array(list(face.probabilities.values()))))
    longest = sorted(sorted(people, key=lambda person: -len(people[person]))[:PEOPLE])
    rows = "".join(
        f"<tr><th>person {person}<td>{_picture(people[person], end_s, journal.expressions)}" for person in longest
    )
    ticks = "".join(f"<span>{_clock(end_s * part / 4)}</span>" for part in range(5))
    others = len(people) - len(longest)
    more = f"<p class=sub>{others:,} more, who are in fewer frames, are only in the tables.</p>" if others else ""
    return f"<h3>{escape(name)}</h3><table class=strip>{rows}<tr><th><td class=axis>{ticks}</table>{more}"


def _picture(seen: list[tuple[float, float, Array]], end_s: float, labels: tuple[str, ...]) -> str:
    """Stacked probabilities of one person, with a break wherever the person is away."""
    times_s, gaps_s, probabilities = (np.array(values) for values in zip(*seen, strict=True))
    breaks = np.flatnonzero(np.diff(times_s) > gaps_s[1:]) + 1
    spells = zip(np.split(times_s, breaks), np.split(probabilities, breaks), strict=True)
    areas = "".join(_areas(times, shares, end_s, labels) for times, shares in spells)
    mean = probabilities.mean(axis=0)
    most = ", ".join(f"{labels[index]} {mean[index]:.0%}" for index in np.argsort(-mean)[:3])
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="on average {most}">'
        f"{areas}</svg>"
    )


def _areas(times_s: Array, probabilities: Array, end_s: float, labels: tuple[str, ...]) -> str:
    """One area per expression from the bottom to its upper edge, the highest first, so that the lower ones cover it.

    Args:
        times_s: (n,); probabilities: (n, K).
    """
    bins = np.array_split(np.arange(len(times_s)), min(len(times_s), _POINTS))
    x = _WIDTH * np.array([times_s[[part[0], part[-1]]].mean() for part in bins]) / max(end_s, 1e-9)
    edges = np.cumsum([probabilities[part].mean(axis=0) for part in bins], axis=1).clip(0, 1)
    if len(x) == 1:
        x, edges = np.array([x[0] - 1, x[0] + 1]), np.repeat(edges, 2, axis=0)
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
