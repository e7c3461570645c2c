"""Jinja templates of the page, with autoescape for names from recipes and data sets."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from mien.training.wording import interval, percent

_TEMPLATES: Final = Path(__file__).with_name("templates")


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a run's report: heading, explanation and content."""

    key: str
    title: str
    note: str
    body: Markup


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
    """Render a template; everything except `Markup` is escaped."""
    return Markup(_ENVIRONMENT.get_template(template).render(values))  # noqa: S704 (autoescape is on)


def side_by_side(*figures: Markup) -> Markup:
    """Arrange figures in a row, or below each other on a narrow page."""
    return render("figures.html", figures=figures)
