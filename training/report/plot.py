"""Inline SVG figures by matplotlib, with placeholder colors that become CSS variables of the page."""

import base64
import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import cv2
import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, MaxNLocator

from mien.data.contract import Array
from mien.models.manifest import Interval

INK: Final = "#010101"
MUTED: Final = "#020202"
GRID: Final = "#030303"
SERIES: Final = ("#040401", "#040402", "#040403", "#040404", "#040405", "#040406")
_STYLES: Final = ("-", "--", ":", "-.")
_VARIABLES: Final = {INK: "currentColor", MUTED: "var(--muted)", GRID: "var(--line)"} | {
    color: f"var(--series-{number})" for number, color in enumerate(SERIES, start=1)
}
_RC: Final[Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mien",
    "text.parse_math": False,  # names may contain dollar signs
    "axes.unicode_minus": False,
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.edgecolor": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a figure of intervals; `estimates` are fractions, in the order of the series."""

    name: str
    note: str
    estimates: tuple[Interval, ...]


def figure(width_in: float = 4.0, height_in: float = 2.7) -> Figure:
    """An empty figure; draw into it within `style()`."""
    return Figure(figsize=(width_in, height_in))


def style() -> Any:
    """Context for creating and drawing figures."""
    return mpl.rc_context(_RC)


def series(number: int) -> dict[str, Any]:
    """Color and dash style of the n-th line; repeated colors have another dash style."""
    return {"color": SERIES[number % len(SERIES)], "linestyle": _STYLES[number // len(SERIES) % len(_STYLES)]}


def svg(drawn: Figure, *, name: str, label: str) -> Markup:
    """Inline SVG of a figure.

    Args:
        drawn: the figure.
        name: unique prefix of its ids on the page; letters, digits and hyphens.
        label: alternative text.
    """
    buffer = io.StringIO()
    with style():
        drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    for stand_in, variable in _VARIABLES.items():
        text = text.replace(stand_in, variable)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    text = re.sub(r'<svg (.*?)width="[^"]*"', r"<svg \1", text, count=1, flags=re.DOTALL)
    text = re.sub(r'<svg (.*?)height="[^"]*"', r"<svg \1", text, count=1, flags=re.DOTALL)
    described = Markup('<svg role="img" aria-label="{}" ').format(label)
    return Markup(text.replace("<svg ", str(described), 1))  # noqa: S704 (matplotlib escapes what it is given)


def percent_axis(axis: Any) -> None:
    """Label an axis of fractions in percent, with enough digits to distinguish its ticks."""
    axis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(_Percent())


class _Percent(Formatter):
    digits = 0

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        steps = np.diff(values)
        self.digits = max(0, -math.floor(math.log10(100 * float(steps.min())) + 1e-9)) if len(steps) else 0
        return [self(value) for value in values]

    def __call__(self, value: float, pos: int | None = None) -> str:
        return f"{100 * value:.{self.digits}f}"


def intervals(rows: Sequence[Row], *, name: str, label: str, title: str = "", legend: Sequence[str] = ()) -> Markup:
    """Points with their 95 % intervals, in percent, one line per row."""
    with style():
        drawn = figure(4.2, 0.55 + 0.3 * len(rows) + 0.25 * bool(title) + 0.25 * bool(legend))
        axes = drawn.subplots()
        axes.set_title(title)
        for place, row in enumerate(rows):
            _draw_row(axes, place, row)
        axes.set_yticks(range(len(rows)), [row.name for row in rows], color=INK)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1)
        percent_axis(axes.xaxis)
        axes.grid(visible=False, axis="y")
        notes = axes.secondary_yaxis("right")
        notes.set_yticks(range(len(rows)), [row.note for row in rows])
        notes.tick_params(length=0)
        notes.spines["right"].set_visible(False)
        for number, text in enumerate(legend):
            axes.plot([], [], _MARKERS[number], color=SERIES[number], label=text, markersize=5)
        if axes.get_legend_handles_labels()[1]:
            drawn.legend(loc="outside lower left", ncols=2)
    return svg(drawn, name=name, label=label)


_MARKERS: Final = ("o", "s")


def _draw_row(axes: Axes, place: int, row: Row) -> None:
    for number, estimate in enumerate(row.estimates):
        height = place + 0.22 * (number - (len(row.estimates) - 1) / 2)
        axes.plot([estimate.low, estimate.high], [height, height], color=SERIES[number], linewidth=2)
        axes.plot(estimate.value, height, _MARKERS[number], color=SERIES[number], markersize=5)


def data_uri(image: Array) -> str:
    """Data URI of an image (H, W, 3) uint8, RGB."""
    done, data = cv2.imencode(".webp", image[:, :, ::-1], [cv2.IMWRITE_WEBP_QUALITY, 85])
    if not done:
        raise RuntimeError("OpenCV cannot encode WebP")
    return "data:image/webp;base64," + base64.b64encode(data.tobytes()).decode()


def heat(crop: Array, relevance: Array) -> Array:
    """Blend a map with a face: dark at the map's minimum, bright at its maximum.

    Args:
        crop: (H, W, 3) uint8, RGB.
        relevance: (side, side).
    Returns: (H, W, 3) uint8, RGB.
    """
    height, width = crop.shape[:2]
    scaled = (relevance - relevance.min()) / max(float(np.ptp(relevance)), 1e-12)
    enlarged = cv2.resize(scaled.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    shares = np.clip(enlarged, 0, 1)
    colors = mpl.colormaps["inferno"](shares)[..., :3]
    gray = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)[..., None] / 255.0
    mixed = 0.45 * gray + 0.55 * colors
    return np.asarray(np.rint(255 * mixed), np.uint8)
