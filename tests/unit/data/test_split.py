"""Splits that depend on names only."""

from mien.data.split import hold_out

NAMES = [f"train_{number:05}" for number in range(1, 1001)]


def test_the_share_is_rounded_down() -> None:
    assert [len(hold_out(NAMES[:count], 0.1)) for count in (0, 9, 10, 19, 1000)] == [0, 0, 1, 1, 100]


def test_the_order_of_the_names_does_not_matter() -> None:
    assert hold_out(NAMES, 0.1) == hold_out(reversed(NAMES), 0.1)


def test_the_choice_is_the_same_on_every_machine() -> None:
    assert sorted(hold_out(NAMES[:40], 0.1)) == ["train_00013", "train_00014", "train_00022", "train_00037"]


def test_a_larger_share_keeps_what_a_smaller_one_held_out() -> None:
    assert hold_out(NAMES, 0.1) < hold_out(NAMES, 0.2)


def test_held_out_names_are_spread_over_the_set() -> None:
    early = sum(name <= NAMES[499] for name in hold_out(NAMES, 0.2))
    assert 75 <= early <= 125
