"""Splits that depend on names only."""

from mien.data.split import hold_out


def test_the_choice_is_the_same_on_every_machine_whatever_the_order() -> None:
    names = {f"train_{number:05}": "fear" for number in range(1, 41)}
    held_out = {"train_00013", "train_00014", "train_00022", "train_00037"}
    assert hold_out(names, 0.1) == hold_out(dict(reversed(names.items())), 0.1) == held_out
