"""Spellings of expressions, and unknown labels."""

import pytest

from mien.data.contract import EIGHT_LABELS, UnknownLabel, parse_label

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
