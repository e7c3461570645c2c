"""The most frequent confusion."""

import numpy as np

from mien.training.wording import most_confused


def test_the_most_frequent_confusion_is_a_share_of_the_actual_class() -> None:
    counts = np.array([[5, 3, 0], [1, 9, 0], [0, 2, 8]])
    assert most_confused(counts, ("fear", "surprise", "anger")) == "fear labeled surprise: 38 %"
    assert most_confused(np.diag([1, 2, 3]), ("fear", "surprise", "anger")) == ""
