"""FERPlus: selection of images, and conversion of votes."""

from pathlib import Path

import pytest

from mien.data.contract import LABELS
from mien.data.readers.base import open_reader
from mien.data.readers.ferplus import COLUMNS, probability_shares
from tests.support.data_sets import make_ferplus


def _votes(**counts: int) -> tuple[int, ...]:
    assert sum(counts.values()) == 10
    return tuple(counts.get(name, 0) for name in COLUMNS)


@pytest.mark.parametrize(
    ("votes", "label", "taken"),
    [
        (_votes(neutral=5, sadness=5), "neutral", {"neutral": 5, "sadness": 5}),
        (_votes(neutral=8, sadness=2), "neutral", {"neutral": 8}),  # three quarters are reached
        (_votes(neutral=4, sadness=3, fear=3), "neutral", {"neutral": 4, "sadness": 3, "fear": 3}),
        (_votes(neutral=4, sadness=2, fear=2, anger=2), None, None),  # four columns
        (_votes(neutral=6, unknown=4), "neutral", {"neutral": 6}),  # unknown ends the taking and is dropped
        (_votes(neutral=5, unknown=5), None, None),  # exactly half is too little
    ],
)
def test_probability_takes_the_largest_columns_until_three_quarters(
    votes: tuple[int, ...], label: str | None, taken: dict[str, int] | None
) -> None:
    found, shares = probability_shares(votes)
    assert found == label
    if taken is not None:
        assert {name: count for name, count in shares.items() if count} == taken


def test_options_choose_the_protocol_and_contempt_as_the_last_label(tmp_path: Path) -> None:
    train = [
        _votes(happiness=5, neutral=4, unknown=1),  # more than half without the single vote
        _votes(neutral=5, sadness=5),
        _votes(contempt=9, neutral=1),
        _votes(anger=6, contempt=4),
        _votes(unknown=10),
    ]
    seven = open_reader("ferplus", make_ferplus(tmp_path, {"FER2013Train": train}))
    happy, angry = seven.samples("train")
    assert (happy.label, angry.label) == ("happiness", "anger")
    assert dict(zip(LABELS, happy.distribution or (), strict=True)) == pytest.approx(
        dict.fromkeys(LABELS, 0.0) | {"happiness": 5 / 9, "neutral": 4 / 9}
    )
    assert angry.distribution == tuple(float(label == "anger") for label in LABELS)
    assert seven.left_out("train") == {"no majority": 1, "contempt": 1, "unknown": 1}
    eight = open_reader("ferplus", tmp_path, classes=8)
    assert eight.labels == (*LABELS, "contempt")
    assert [sample.label for sample in eight.samples("train")] == ["happiness", "contempt", "anger"]
    assert (eight.samples("train")[2].distribution or ())[-1] == pytest.approx(0.4)
    undecided = open_reader("ferplus", tmp_path, protocol="probability").samples("train")[1]
    shares = dict(zip(LABELS, undecided.distribution or (), strict=True))
    assert (shares["neutral"], shares["sadness"]) == (0.5, 0.5)


def test_votes_are_kept_without_a_majority_and_with_single_ones(tmp_path: Path) -> None:
    train = [
        _votes(neutral=5, sadness=4, fear=1),
        _votes(neutral=3, happiness=3, contempt=4),
        _votes(contempt=6, anger=4),
        _votes(happiness=5, unknown=5),  # half of the raters named no expression
    ]
    reader = open_reader("ferplus", make_ferplus(tmp_path, {"FER2013Train": train}))
    named = [
        {label: count for label, count in zip(LABELS, votes, strict=True) if count}
        for _, votes in reader.voted("train")
    ]
    assert named == [{"neutral": 5, "sadness": 4, "fear": 1}, {"neutral": 3, "happiness": 3}]
