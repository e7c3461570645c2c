"""Splits that depend on names only."""

from mien.data.split import hold_out

NAMES = {f"train_{number:05}": "fear" for number in range(1, 1001)}


def _first(count: int) -> dict[str, str]:
    return dict(list(NAMES.items())[:count])


def test_the_share_is_rounded_down_and_part_of_a_larger_one_whatever_the_order() -> None:
    assert [len(hold_out(_first(count), 0.1)) for count in (0, 9, 10, 19, 1000)] == [0, 0, 1, 1, 100]
    assert hold_out(NAMES, 0.1) == hold_out(dict(reversed(NAMES.items())), 0.1) < hold_out(NAMES, 0.2)


def test_each_class_has_its_share() -> None:
    assert hold_out(NAMES | {"other": "anger"}, 0.1) == hold_out(NAMES, 0.1)
    anger = {name.replace("train", "valid"): "anger" for name in _first(30)}
    assert hold_out(NAMES | anger, 0.1) == hold_out(NAMES, 0.1) | hold_out(anger, 0.1)


def test_the_choice_is_the_same_on_every_machine() -> None:
    assert sorted(hold_out(_first(40), 0.1)) == ["train_00013", "train_00014", "train_00022", "train_00037"]
