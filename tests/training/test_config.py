"""Recipes: strict reading, overrides, contradictions, and the networks of the shipped ones."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from mien.models.manifest import artifact_dir
from mien.models.network import FaceNetwork
from mien.training.config import ModelConfig, Recipe, RecipeError, parse_as, read_as, with_all_faces
from mien.training.losses import distillation_loss
from mien.training.losses.cross_entropy import loss as cross_entropy
from mien.training.weights import load_initial
from tests.support import ROOT
from tests.support.models import crops

CNN: dict[str, object] = {"family": "cnn", "name": "resnet18"}


def minimal() -> dict[str, Any]:
    return {
        "name": "trial",
        "epochs": 1,
        "data": {"train": [{"kind": "folders", "split": "train"}], "valid": {"kind": "folders", "split": "valid"}},
        "model": CNN,
    }


VALID_ON_TEST = {"train": [{"kind": "folders", "split": "train"}], "valid": {"kind": "folders", "split": "test"}}
VALID_WITHOUT_LABELS = minimal()["data"] | {"valid": {"kind": "photos", "split": "train", "target": "teacher"}}
UNLABELED = minimal()["data"] | {"train": [{"kind": "folders", "split": "train", "target": "teacher"}]}


def shared(*shares: float | None) -> dict[str, object]:
    return {"train": [{"kind": "folders", "split": "train", "share": share} for share in shares]}


TAUGHT = {"mode": "soft", "teachers": ["runs/t"]}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"data": VALID_ON_TEST}, "test split is for the final evaluation only"),
        ({"data": VALID_WITHOUT_LABELS, "distillation": TAUGHT}, "photos: validation needs labels"),
        ({"data": UNLABELED, "distillation": TAUGHT, "loss": {"label_smoothing": 0.1}}, "and label_smoothing 0"),
        ({"data": shared(0.6, 0.4, None)}, "a sum below 1, and a source without one that has the rest"),
        ({"data": shared(0.5, 0.2, 0.2)}, "a sum below 1, and a source without one that has the rest"),
        ({"augment": {"color_jitter": 0.3}}, r"model\.color is luminance"),
        ({"model": {"family": "timm", "name": "resnet18", "pretrained": True, "init_from": "runs/t"}}, "choose one"),
        ({"model": {"init_from": "nowhere"}}, "nowhere: not the folder of a run or an artifact"),
        ({"epoch": 3}, "did you mean 'epochs'"),
        ({"lr": 3e-4}, "did you mean 'optim.learning_rate'"),
        ({"optim": {"lr": 3e-4}}, r"'optim\.lr': did you mean 'optim\.learning_rate'"),
        ({"optim": {"warmup_epochs": 1}}, "the training would end in its warm-up"),
        ({"runtime": {"wandb": True}}, r"unknown key 'runtime\.wandb'"),
        ({"distillation": TAUGHT | {"teachers": "runs/t"}}, r"distillation\.teachers: Input should be a list"),
    ],
)
def test_a_contradictory_or_incomplete_recipe_is_rejected(change: dict[str, object], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        parse_as(Recipe, minimal() | change, origin="here")


def test_all_faces_are_those_of_validation_too_without_their_near_duplicates_left_out() -> None:
    data, near = minimal()["data"], "exclude_near_duplicates_of"
    data["train"][0]["options"] = {near: "valid,test"}  # as text, as on the command line
    for target, expected in (("votes", "votes"), ("teacher", "label")):
        data["train"][0]["target"] = target
        recipe = with_all_faces(parse_as(Recipe, minimal() | {"data": data, "distillation": TAUGHT}, origin="here"))
        assert recipe.data.train[0].options == {near: ["test"]}
        assert [(source.split, source.target) for source in recipe.data.train[1:]] == [("valid", expected)]


def test_overrides_reach_nested_keys_and_numbers_with_an_exponent_are_numbers(tmp_path: Path) -> None:
    trial = tmp_path / "trial.yaml"
    trial.write_text(yaml.safe_dump(minimal()) + "optim: {options: {eps: 1e-8}}\n", encoding="utf-8")
    assert read_as(Recipe, trial).optim.options == {"eps": 1e-8}
    overrides = ["optim.options={eps: 1e-9, betas: [9e-1, 1.0E-3]}", "data.train.0.root=~/there"]
    recipe = read_as(Recipe, trial, overrides)
    assert recipe.optim.options == {"eps": 1e-9, "betas": [0.9, 0.001]}
    assert recipe.data.train[0].root == Path.home() / "there"


def test_a_released_artifact_is_named_by_its_name_or_a_short_one_and_recorded_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    released = artifact_dir(None)
    model = ModelConfig(family="cnn", name="resnet18", init_from=Path(released.name))
    assert model.init_from == released
    assert model.model_dump(mode="json")["init_from"] == released.name
    short = parse_as(Recipe, minimal() | {"model": {"init_from": "v3"}}, origin="here").model
    assert (short.init_from, short.family, short.img_size) == (artifact_dir("v3"), "deit", 56)
    (tmp_path / released.name).mkdir()  # a run of the same name
    assert ModelConfig(family="cnn", name="resnet18", init_from=Path(released.name)).init_from == Path(released.name)


@pytest.mark.parametrize("path", sorted((ROOT / "training/recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_recipe_builds_a_network_of_the_size_it_states_that_learns(path: Path) -> None:
    recipe = read_as(Recipe, path, ["model.pretrained=false"])
    network = FaceNetwork(recipe.model).train()
    if recipe.model.init_from is not None and recipe.model.init_from.exists():  # a released artifact
        load_initial(network, recipe.model.init_from)
    stated = re.search(r"([\d.]+) M parameters", " ".join(path.read_text(encoding="utf-8").split("\n# ")))
    assert stated is not None
    assert float(stated[1]) == pytest.approx(sum(weight.numel() for weight in network.parameters()) / 1e6, abs=0.051)
    heads = network(crops(2, channels=1 if recipe.model.color == "luminance" else 3))
    loss = cross_entropy(heads.class_logits, torch.eye(7)[:2], recipe.loss)
    if recipe.distillation.teachers:
        loss = loss + distillation_loss(heads, torch.randn(2, 7), recipe.distillation)
    loss.backward()  # type: ignore[no-untyped-call]
    silent = [name for name, weight in network.named_parameters() if weight.requires_grad and weight.grad is None]
    assert silent == []
