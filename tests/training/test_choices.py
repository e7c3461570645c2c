"""Choices of a recipe, each used in a short run."""

import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from timm import create_model
from torch import nn

from mien.models.manifest import sha256_of
from mien.models.network import FaceNetwork
from mien.training.batches import epoch_order
from mien.training.config import RecipeError, RuntimeConfig
from mien.training.initialization import InitialWeightsError, load_initial
from mien.training.losses import attention_consistency
from mien.training.optimizer import perturbed_weights
from mien.training.run import open_trackers
from mien.training.run_folder import FACTS_NAME, load_best
from mien.training.train import train
from tests.support.training import TINY_CNN, TINY_DEIT, drawn_faces, losses, metric_lines, small_recipe


def test_the_class_sampler_draws_classes_equally_and_square_root_is_in_between() -> None:
    labels = np.repeat(np.arange(3), [900, 90, 10])
    shares = {
        sampler: np.bincount(labels[epoch_order(labels, seed=0, epoch=0, sampler=sampler)], minlength=3) / 1000
        for sampler in ("instance", "square_root", "class")
    }
    assert shares["instance"].tolist() == [0.9, 0.09, 0.01]
    assert shares["class"] == pytest.approx([1 / 3] * 3, abs=0.05)
    assert shares["square_root"] == pytest.approx(np.sqrt([900, 90, 10]) / np.sqrt([900, 90, 10]).sum(), abs=0.05)


def test_sam_computes_the_gradient_at_perturbed_weights_and_restores_them() -> None:
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, 2.0)
    network(torch.ones(1, 1)).square().backward()  # gradient 2 w = 4
    with perturbed_weights(network, 0.5):
        assert network.weight.item() == pytest.approx(2.5)
        assert network.weight.grad is None
        network(torch.ones(1, 1)).square().backward()
    assert network.weight.item() == 2.0
    assert network.weight.grad is not None
    assert network.weight.grad.item() == pytest.approx(5.0)


def test_sam_changes_the_training(tmp_path: Path) -> None:
    recipe = small_recipe(drawn_faces(tmp_path / "faces", train=4, valid=1), epochs=1)
    plain = losses(train(recipe, tmp_path / "plain"))
    sharp = recipe.model_copy(update={"optim": recipe.optim.model_copy(update={"sam_rho": 0.05})})
    changed = losses(train(sharp, tmp_path / "sam"))
    assert changed[1] == pytest.approx(plain[1], rel=1e-5)
    assert changed[3] != pytest.approx(plain[3], rel=1e-5)


def test_attention_consistency_makes_maps_symmetric_and_requires_maps_that_mirror(tmp_path: Path) -> None:
    root = drawn_faces(tmp_path / "faces")
    found = {}
    for weight in (1e-6, 100.0):
        recipe = small_recipe(root, epochs=4, loss={"attention_consistency": weight})
        lines = metric_lines(train(recipe, tmp_path / str(weight)))
        found[weight] = [line["inconsistency"] for line in lines if "loss" in line]
    assert found[100.0][0] == pytest.approx(found[1e-6][0], rel=1e-5)
    assert found[100.0][-1] < 0.5 * found[1e-6][-1]
    network = FaceNetwork(recipe.model)
    maps = network(torch.randint(0, 256, (2, 112, 112, 1), dtype=torch.uint8)).class_maps
    assert attention_consistency(maps, maps.flip(dims=[3])).item() == 0
    maps.square().sum().backward()
    assert network.backbone.network.fc.weight.grad is None, "a smaller classifier is no consistency"
    positions = {"family": "mobilefacenet", "name": "mobilefacenet", "normalization": "fixed"}
    for model in (TINY_DEIT, positions):
        other = small_recipe(root, model=model, loss={"attention_consistency": 5.0})
        with pytest.raises(RecipeError, match=f"attention_consistency: {model['name']} has no class activation maps"):
            train(other, tmp_path / "other")


def test_third_party_weights_initialize_a_network_and_their_terms_are_inherited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    published = create_model("test_resnet", pretrained=False, num_classes=1000).state_dict()
    path = tmp_path / "published.pth"
    torch.save({"state_dict": {f"module.{name}": value for name, value in published.items()}}, path)
    model = TINY_CNN | {"init_from": str(path), "init_terms": "MIT, by their authors"}
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    recipe = small_recipe(root, model=model, epochs=1, optim={"learning_rate": 1e-9, "min_learning_rate": 0})
    out = train(recipe, tmp_path / "run")
    save_file(published, tmp_path / "published.safetensors")
    loaded = FaceNetwork(recipe.model)
    load_initial(loaded, tmp_path / "published.safetensors")
    name = "layer1.0.conv1.weight"
    first = next(name for name, value in published.items() if value.ndim == 4)
    summed = published[first].sum(dim=1, keepdim=True)
    for weights in (load_best(out)[0].state_dict(), loaded.state_dict()):
        torch.testing.assert_close(weights[f"backbone.network.{name}"], published[name], atol=1e-6, rtol=1e-4)
        torch.testing.assert_close(weights[f"backbone.network.{first}"], summed, atol=1e-6, rtol=1e-4)
    facts = json.loads((out / FACTS_NAME).read_text(encoding="utf-8"))
    assert facts["weights_from"] == {path.name: sha256_of(path)}
    assert facts["weight_terms"] == {path.name: "MIT, by their authors"}
    listed = [record.message for record in caplog.records if "newly initialized" in record.message]
    assert all(message.endswith("newly initialized: backbone.network.fc") for message in listed)
    assert listed


def test_third_party_weights_that_are_damaged_or_of_another_network_are_rejected(tmp_path: Path) -> None:
    network = FaceNetwork(small_recipe(tmp_path).model)
    broken, other, tensor, whole, empty = (
        tmp_path / name for name in ("broken.pth", "other.safetensors", "tensor.pth", "whole.pt", "empty.pt")
    )
    broken.write_bytes(b"rubbish")
    empty.touch()
    torch.save(torch.nn.Linear(1, 1), whole)
    save_file({"else.weight": torch.zeros(2)}, other)
    torch.save(torch.zeros(2), tensor)
    expectations = {
        broken: "cannot be read",
        other: "no tensor name matches this timm network",
        tensor: "found Tensor",
        whole: r"whole network, whose code is not run\. Save the state dict: torch\.save\(network\.state_dict",
        empty: r"cannot be read as a state dict \(it is empty",
    }
    for path, expected in expectations.items():
        with pytest.raises(InitialWeightsError, match=expected):
            load_initial(network, path)


def test_a_missing_tracker_names_the_command_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RecipeError, match="pip install wandb"):
        open_trackers(RuntimeConfig(wandb=True), tmp_path, name="r", step=0)
