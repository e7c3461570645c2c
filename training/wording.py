"""Wording of figures in tables, cards and reports: shares in per cent, with their intervals."""

from models.manifest import Interval
from training.loop.metrics import Estimate


def percent(share: float, digits: int = 1, *, sign: str = "") -> str:
    """A share of 1 in per cent, without the per cent sign; `sign` "+" marks gains."""
    return f"{100 * share:{sign}.{digits}f}"


def interval(figure: Estimate | Interval, digits: int = 2, *, sign: str = "") -> str:
    """A share of 1 in per cent with its interval."""
    value, low, high = (percent(one, digits, sign=sign) for one in (figure.value, figure.low, figure.high))
    return f"{value} ({low} to {high})"
