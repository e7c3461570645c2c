"""Jinja templates of the page, with autoescape: names from recipes and data sets are text, never markup."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from training.loop.metrics import Estimate

_TEMPLATES: Final = Path(__file__).with_name("templates")


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a run's report: a heading, a sentence or two on how to read it, and what is shown."""

    key: str
    title: str
    note: str
    body: Markup


def percent(share: float, digits: int = 1) -> str:
    """A share of 1 in per cent, without the sign."""
    return f"{100 * share:.{digits}f}"


def interval(estimate: Estimate, digits: int = 1) -> str:
    """A share of 1 in per cent with its interval."""
    return f"{percent(estimate.value, digits)} ({percent(estimate.low, digits)} to {percent(estimate.high, digits)})"


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "interval": interval}
    return environment


_ENVIRONMENT: Final = _environment()


def render(template: str, **values: object) -> Markup:
    """Fill a template of this folder; everything that is not `Markup` is escaped."""
    return Markup(_ENVIRONMENT.get_template(template).render(values))  # noqa: S704 (autoescape is on)


def side_by_side(*figures: Markup) -> Markup:
    """Figures in a row where there is room, else below each other."""
    return render("figures.html", figures=figures)
