"""Percentages and their intervals in tables, cards and reports."""

from models.manifest import Interval


def percent(share: float, digits: int = 1, *, sign: str = "") -> str:
    """Format a share as a percentage, without the percent sign; `sign="+"` shows the sign of gains."""
    return f"{100 * share:{sign}.{digits}f}"


def interval(figure: Interval, digits: int = 2, *, sign: str = "") -> str:
    """Format a share and its interval as percentages."""
    value, low, high = (percent(one, digits, sign=sign) for one in (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high})"
