"""Spellings of expressions, and unknown labels."""

import pytest

from mien.data.contract import EIGHT_LABELS, LABELS, RAF_DB_IDS, UnknownLabel, label_index, parse_label

SPELLINGS = {
    "happiness": ("happy", "4_happy", "04-Happy"), "sadness": ("Sad faces",), "anger": ("angry",),
    "surprise": ("Surprised (2)",), "disgust": ("disgusted",), "fear": ("fearful",),
    "neutral": ("NEUTRAL", "neutral_expression"),
}  # fmt: skip


@pytest.mark.parametrize(("label", "texts"), SPELLINGS.items())
def test_labels_are_parsed_in_any_case_and_common_spelling(label: str, texts: tuple[str, ...]) -> None:
    assert {parse_label(text) for text in (label, label.upper(), f" {label.title()} ", *texts)} == {label}


@pytest.mark.parametrize(("number", "label"), RAF_DB_IDS.items())
def test_a_bare_number_is_raf_dbs(number: int, label: str) -> None:
    assert parse_label(str(number)) == label


UNKNOWN = " 0 8 contempt happy_sad not+happy happily_surprised sadly-angry none faces uncertain"


@pytest.mark.parametrize("text", UNKNOWN.split(" "))
def test_unknown_classes_are_not_guessed(text: str) -> None:
    with pytest.raises(UnknownLabel, match="expected one of surprise"):
        parse_label(text.replace("+", " "))


def test_contempt_is_parsed_only_among_eight_labels() -> None:
    assert [parse_label(text, EIGHT_LABELS) for text in ("Contempt", "7_contempt")] == ["contempt"] * 2
    with pytest.raises(UnknownLabel, match="neutral, contempt, or a RAF-DB number"):
        parse_label("none", EIGHT_LABELS)


def test_an_index_is_the_position_in_the_order() -> None:
    assert [label_index(label) for label in LABELS] == list(range(7))
    with pytest.raises(UnknownLabel, match="contempt"):
        label_index("contempt")
