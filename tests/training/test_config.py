"""Recipes: strict reading, overrides and error messages."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from mien.models.manifest import artifact_dir
from mien.training.config import ModelConfig, Recipe, RecipeError, parse_as, read_as


def minimal() -> dict[str, Any]:
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
        ({"optim": {"lr": 1e-3}}, "learning_rate"),
        ({"augment": {"flipp": 0.5}}, "flip"),
        ({"data": {"train": [{"kind": "folders", "splits": "train"}]}}, "split"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(change: dict[str, object], nearest: str) -> None:
    with pytest.raises(RecipeError, match=f"did you mean '{nearest}'"):
        parse_as(Recipe, minimal() | change, origin="here")


def test_one_mistake_is_one_message() -> None:
    data = {"train": [{"kind": "folders", "split": "train", "fraction": 0}], "valid": minimal()["data"]["valid"]}
    with pytest.raises(RecipeError, match=r"^recipe here: data\.train\.0\.fraction: Input should be greater than 0$"):
        parse_as(Recipe, minimal() | {"data": data}, origin="here")
    with pytest.raises(RecipeError, match=r"^recipe here: optim\.warmup_epochs 3 is more"):
        parse_as(Recipe, minimal() | {"optim": {"warmup_epochs": 3}}, origin="here")


CNN: dict[str, object] = {"family": "cnn", "name": "resnet18"}
VALID_ON_TEST = {"train": [{"kind": "folders", "split": "train"}], "valid": {"kind": "folders", "split": "test"}}
VALID_WITHOUT_LABELS = minimal()["data"] | {"valid": {"kind": "photos", "split": "train", "target": "teacher"}}
UNLABELED = minimal()["data"] | {"train": [{"kind": "folders", "split": "train", "target": "teacher"}]}
FOLD = {"of": 4, "index": 4, "take": "others"}
FIFTH_OF_FOUR = minimal()["data"] | {"train": [{"kind": "folders", "split": "train", "fold": FOLD}]}
TAUGHT = {"mode": "soft", "teachers": ["runs/t"]}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"data": VALID_ON_TEST}, "test split is for the final evaluation only"),
        ({"data": VALID_WITHOUT_LABELS, "distillation": TAUGHT}, "photos: validation needs labels"),
        ({"distillation": {"mode": "token-soft"}}, "every mode except none requires a teacher"),
        ({"loss": {"logit_adjustment": 1.0}, "data": minimal()["data"] | {"sampler": "class"}}, "choose one"),
        ({"data": UNLABELED}, "target teacher requires a distillation mode"),
        ({"data": UNLABELED, "distillation": TAUGHT, "loss": {"label_smoothing": 0.1}}, "and label_smoothing 0"),
        ({"distillation": TAUGHT | {"views": "fixed"}, "mix": {"mixup": 0.2}}, "views fixed with mix"),
        ({"batch_size": 8, "runtime": {"accumulate": 5}}, r"accumulate 5: at most 4, half of batch_size"),
        ({"optim": {"warmup_epochs": 3}}, "warmup_epochs 3 is more than epochs 1"),
        ({"data": FIFTH_OF_FOUR}, "index 4: expected 0 to 3"),
        ({"augment": {"color_jitter": 0.3}}, r"model\.color is luminance"),
        ({"model": CNN | {"init_from": "runs/other", "pretrained": True}}, "choose one"),
        ({"start_share": 0.5}, "start_share' was removed"),
        ({"model": CNN | {"options": {"in_chans": 3}}}, r"options\.in_chans: set color instead"),
        ({"model": CNN | {"init_from": "weights.pth"}}, "name their publisher and license in init_terms"),
    ],
)
def test_a_contradictory_or_incomplete_recipe_is_rejected(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        parse_as(Recipe, minimal() | change, origin="here")


@pytest.fixture
def trial(tmp_path: Path) -> Path:
    path = tmp_path / "trial.yaml"
    path.write_text(yaml.safe_dump(minimal()), encoding="utf-8")
    return path


def test_overrides_reach_nested_keys_and_numbers_with_an_exponent_are_numbers(trial: Path) -> None:
    values = yaml.safe_dump(minimal()) + "optim: {options: {eps: 1e-8, betas: [9e-1, 1.0E-3]}}\n"
    trial.write_text(values, encoding="utf-8")
    expected = {"eps": 1e-8, "betas": [0.9, 0.001]}
    assert read_as(Recipe, trial).optim.options == expected
    options = ["optim.options={eps: 1e-8, betas: [9e-1, 1.0E-3]}", "model.options.scale=2e3"]
    recipe = read_as(Recipe, trial, [*options, "data.train.0.root=~/there", "model.pretrained=true"])
    assert recipe.optim.options == expected
    assert recipe.model.options == {"scale": 2000.0}
    assert recipe.data.train[0].root == Path.home() / "there"
    assert recipe.model.pretrained is True


def test_a_released_artifact_is_named_by_its_name_and_recorded_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    released = artifact_dir(None)
    model = ModelConfig(family="cnn", name="resnet18", init_from=Path(released.name))
    assert model.init_from == released
    assert model.model_dump(mode="json")["init_from"] == released.name
    (tmp_path / released.name).mkdir()  # a run of the same name
    assert ModelConfig(family="cnn", name="resnet18", init_from=Path(released.name)).init_from == Path(released.name)


def test_a_file_that_is_not_text_or_has_a_key_twice_is_not_a_recipe(trial: Path) -> None:
    trial.write_text("base: &a {x: 1}\nother: {<<: *a, x: 2}\noptim: {sam_rho: 0.1}\noptim: {}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"found optim twice\s+in .*, line 4"):
        read_as(Recipe, trial)
    trial.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeError, match=r"trial\.yaml: not YAML"):
        read_as(Recipe, trial)


def test_a_source_without_root_names_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MIEN_DATA_DIR", raising=False)
    with pytest.raises(RecipeError, match="MIEN_DATA_DIR is not set"):
        parse_as(Recipe, minimal(), origin="here").data.valid.resolved_root()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("data.train.5.root=/there", "'5' is not an index of this list, expected 0 to 0"),
        ("data.train.x.root=/there", "'x' is not an index of this list"),
        ("data.train.-1=x", "'-1' is not an index of this list"),
        ("epochs.more=3", "epochs is 1 in the recipe and has no more"),
        ("optim.learning_rate", "expected key=value"),
        ("epochs=", "no value after the equals sign"),
        ("epochs=[", "override 'epochs=[': '[' is not a YAML value"),
        ("optim.learning_rate=inf", "finite number"),
        ("augment.flip=7", "augment.flip: Input should be less than or equal to 1"),
        ("augment.rotate_degrees=400", "rotate_degrees: Input should be less than or equal to 180"),
    ],
)
def test_an_invalid_override_is_one_clear_line(trial: Path, override: str, expected: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(expected)):
        read_as(Recipe, trial, [override])
