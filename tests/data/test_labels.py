"""Spellings of expressions and unknown labels, and the softmax."""

import numpy as np
import pytest
from scipy.special import softmax as scipy_softmax

from mien.data.contract import EIGHT_LABELS, UnknownLabel, parse_label, softmax

SPELLINGS = {
    "happiness": ("happy", "4_happy", "04-Happy"), "sadness": ("Sad faces",), "anger": ("angry",),
    "surprise": ("Surprised (2)",), "disgust": ("disgusted",), "fear": ("fearful",),
    "neutral": ("NEUTRAL", "neutral_expression"),
}  # fmt: skip


@pytest.mark.parametrize(("label", "texts"), SPELLINGS.items())
def test_labels_are_parsed_in_any_case_and_common_spelling(label: str, texts: tuple[str, ...]) -> None:
    spelled = (label, label.upper(), f" {label.title()} ", *texts)
    assert {parse_label(text) for text in spelled} == {label}


UNKNOWN = " 0 1 07 8 contempt happy_sad not+happy happily_surprised sadly-angry none faces uncertain"


@pytest.mark.parametrize("text", UNKNOWN.split(" "))
def test_unknown_classes_are_not_guessed(text: str) -> None:
    with pytest.raises(UnknownLabel, match="expected one of surprise"):
        parse_label(text.replace("+", " "))


def test_contempt_is_parsed_only_among_eight_labels() -> None:
    assert [parse_label(text, EIGHT_LABELS) for text in ("Contempt", "7_contempt")] == ["contempt"] * 2
    with pytest.raises(UnknownLabel, match=r"neutral, contempt$"):
        parse_label("none", EIGHT_LABELS)


def test_softmax_equals_that_of_scipy() -> None:
    logits = np.random.default_rng(0).normal(0, 5, (50, 7)).astype(np.float32)
    assert softmax(logits, 1.7) == pytest.approx(scipy_softmax(logits.astype(np.float64) / 1.7, axis=1), abs=1e-12)


def test_softmax_survives_logits_of_any_size() -> None:
    rows = softmax(np.array([[1e4, 0, -1e4, 0, 0, 0, 0], [-1e4] * 7], np.float32), 0.01)
    assert rows[0] == pytest.approx([1, 0, 0, 0, 0, 0, 0])
    assert rows[1] == pytest.approx([1 / 7] * 7)
