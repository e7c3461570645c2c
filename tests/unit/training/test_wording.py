"""Figures in words: per cent with and without an interval."""

from models.manifest import Interval
from training.wording import interval, percent


def test_a_share_is_per_cent_with_the_digits_asked_for() -> None:
    assert percent(0.98765) == "98.8"
    assert percent(0.5, 0) == "50"
    assert percent(0.01, 2, sign="+") == "+1.00"


def test_an_interval_follows_its_value() -> None:
    assert interval(Interval(0.8743, 0.863, 0.886)) == "87.43 (86.30 to 88.60)"
    assert interval(Interval(0.01, -0.02, 0.04), 1, sign="+") == "+1.0 (-2.0 to +4.0)"
