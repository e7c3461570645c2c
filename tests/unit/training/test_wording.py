"""Percentages with an interval, and the most frequent confusion."""

import numpy as np

from mien.models.manifest import Interval
from mien.training.wording import interval, most_confused


def test_an_interval_follows_its_value() -> None:
    assert interval(Interval(0.8743, 0.863, 0.886)) == "87.43 (86.30 to 88.60)"
    assert interval(Interval(0.01, -0.02, 0.04), 1, sign="+") == "+1.0 (-2.0 to +4.0)"


def test_the_most_frequent_confusion_is_a_share_of_the_actual_class() -> None:
    counts = np.array([[5, 3, 0], [1, 9, 0], [0, 2, 8]])
    assert most_confused(counts, ("fear", "surprise", "anger")) == "fear labeled surprise: 38 %"
    assert most_confused(np.diag([1, 2, 3]), ("fear", "surprise", "anger")) == ""
