"""Spellings of expressions, unknown labels, and colors."""

import pytest

from mien.data.contract import EIGHT_LABELS, UnknownLabel, parse_label
from mien.data.contract.labels import hex_color

SPELLINGS = {
    "happiness": ("happy", "4_happy", "04-Happy"), "sadness": ("Sad faces",), "anger": ("angry",),
    "surprise": ("Surprised (2)",), "disgust": ("disgusted",), "fear": ("fearful",),
    "neutral": ("NEUTRAL", "neutral_expression"),
}  # fmt: skip


def test_labels_are_parsed_in_any_case_and_common_spelling() -> None:
    for label, texts in SPELLINGS.items():
        spelled = (label, label.upper(), f" {label.title()} ", *texts)
        assert {parse_label(text) for text in spelled} == {label}
    assert parse_label("7_contempt", EIGHT_LABELS) == "contempt"


@pytest.mark.parametrize("text", ["", "07", "contempt", "happy_sad", "not happy", "happily_surprised", "uncertain"])
def test_unknown_classes_are_not_guessed(text: str) -> None:
    with pytest.raises(UnknownLabel, match="expected one of surprise"):
        parse_label(text)


def test_colors_are_those_of_outputs_and_pages() -> None:
    expected = ["#f0e442", "#cc79a7", "#009e73", "#e69f00", "#56b4e9", "#d55e00", "#c8c8c8", "#0072b2"]
    assert [hex_color(label, EIGHT_LABELS) for label in EIGHT_LABELS] == expected
    own = ("happiness", "cat", "dog", "owl", "bee", "ant", "fox", "elk", "cow", "hen")  # the colors that are left
    left = [color for color in expected if color != "#e69f00"]
    assert [hex_color(label, own) for label in own] == ["#e69f00", *left, "#db7070", "#708fdb"]
