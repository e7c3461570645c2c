"""Text for probabilities."""

import pytest

from mien.app.inference.wording import percent


@pytest.mark.parametrize(
    ("probability", "words"),
    [(0.0, "0%"), (0.496, "50%"), (0.9949, "99%"), (0.995, ">99%"), (0.99997, ">99%"), (1.0, ">99%")],
)
def test_no_text_claims_certainty(probability: float, words: str) -> None:
    assert percent(probability) == words
