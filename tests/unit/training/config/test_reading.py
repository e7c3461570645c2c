"""Recipes: strict reading, overrides and error messages."""

import re
from pathlib import Path

import pytest
import yaml

from training.config import Recipe, RecipeError, parse_as, read_recipe


def minimal() -> dict[str, object]:
    return {
        "name": "trial",
        "epochs": 1,
        "data": {"train": [{"kind": "folders", "split": "train"}], "valid": {"kind": "folders", "split": "valid"}},
        "model": {"family": "cnn", "name": "resnet18"},
    }


@pytest.mark.parametrize(
    ("change", "nearest"),
    [
        ({"epoch": 3}, "epochs"),
        ({"optim": {"learning_rat": 1e-3}}, "learning_rate"),
        ({"augment": {"flipp": 0.5}}, "flip"),
        ({"distillation": {"temprature": 2.0}}, "temperature"),
        ({"mix": {"cut_mix": 1.0}}, "cutmix"),
        ({"runtime": {"compil": True}}, "compile"),
        ({"loss": {"class_balanced": 0.99}}, "class_balance"),
        ({"data": {"train": [{"kind": "folders", "splits": "train"}]}}, "split"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(change: dict[str, object], nearest: str) -> None:
    with pytest.raises(RecipeError, match=f"did you mean '{nearest}'"):
        parse_as(Recipe, minimal() | change, origin="here")


def test_a_test_split_is_rejected_for_training_and_selection() -> None:
    values = minimal()
    values["data"] = {"train": [{"kind": "folders", "split": "train"}], "valid": {"kind": "folders", "split": "test"}}
    with pytest.raises(RecipeError, match="test split is for the final evaluation only"):
        parse_as(Recipe, values, origin="here")


def test_distillation_without_a_teacher_is_rejected() -> None:
    with pytest.raises(RecipeError, match="every mode except none requires a teacher"):
        parse_as(Recipe, minimal() | {"distillation": {"mode": "token-soft"}}, origin="here")


def test_overrides_reach_nested_keys_and_scientific_numbers(tmp_path: Path) -> None:
    path = tmp_path / "trial.yaml"
    path.write_text(yaml.safe_dump(minimal()), encoding="utf-8")
    recipe = read_recipe(path, ["optim.learning_rate=3e-4", "data.train.0.root=/there", "model.pretrained=true"])
    assert recipe.optim.learning_rate == 3e-4
    assert recipe.data.train[0].root == Path("/there")
    assert recipe.model.pretrained is True


def test_an_override_without_a_value_shows_an_example(tmp_path: Path) -> None:
    path = tmp_path / "trial.yaml"
    path.write_text(yaml.safe_dump(minimal()), encoding="utf-8")
    with pytest.raises(RecipeError, match="expected key=value"):
        read_recipe(path, ["optim.learning_rate"])


def test_a_file_that_is_not_text_is_not_a_recipe(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"weights\.pt: not YAML"):
        read_recipe(tmp_path / "weights.pt")


def test_a_source_without_root_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIEN_DATA_DIR", raising=False)
    with pytest.raises(RecipeError, match="MIEN_DATA_DIR is not set"):
        parse_as(Recipe, minimal(), origin="here").data.valid.resolved_root()


def test_two_remedies_for_rare_classes_are_rejected() -> None:
    with pytest.raises(RecipeError, match="choose one"):
        parse_as(Recipe, minimal() | {"loss": {"logit_adjustment": 1.0, "class_balance": 0.99}}, origin="here")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.train.5.root=/there", "'5' is not an index of this list, expected 0 to 0"),
        ("data.train.x.root=/there", "'x' is not an index of this list"),
        ("data.train.-1=x", "'-1' is not an index of this list"),
        ("epochs.more=3", "epochs is 1 in the recipe and has no more"),
        ("epochs=", "no value after the equals sign"),
        ("epochs=[", "override 'epochs=[': '[' is not a YAML value"),
        ("augment.flip=7", "flip: expected 0 to 1"),
        ("augment.rotate_degrees=400", "rotate_degrees: expected 0 to 1, or to 180 degrees"),
    ],
)
def test_an_invalid_override_is_one_clear_line(tmp_path: Path, override: str, expected: str) -> None:
    path = tmp_path / "trial.yaml"
    path.write_text(yaml.safe_dump(minimal()), encoding="utf-8")
    with pytest.raises(RecipeError, match=re.escape(expected)):
        read_recipe(path, [override])
