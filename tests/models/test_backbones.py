"""Backbones: published weights and frozen layers."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

from mien.models.backbones import PretrainedWeightsUnavailable, create_backbone
from mien.models.backbones import mobilefacenet as family
from mien.models.backbones.mobilefacenet import NAME
from mien.models.network import heads_of
from tests.support.models import config


def test_a_file_of_published_weights_initializes_a_network_for_luminance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published = timm.create_model("test_resnet", num_classes=1000).state_dict()
    path = tmp_path / "published.pth"
    torch.save({"state_dict": {f"module.{name}": value for name, value in published.items()}}, path)
    of_file = config("test_resnet", family="cnn", pretrained_cfg_overlay={"file": str(path)})
    of_file = of_file.model_copy(update={"pretrained": True})
    own = create_backbone(of_file).state_dict()
    assert torch.equal(own["layer1.0.conv1.weight"], published["layer1.0.conv1.weight"])
    torch.testing.assert_close(own["conv1.0.weight"], published["conv1.0.weight"].sum(dim=1, keepdim=True))
    path.write_bytes(b"rubbish")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for options in (of_file.options, {}):
        with pytest.raises(PretrainedWeightsUnavailable, match=r"overlay=\{file: FILE\}.*model\.pretrained=false"):
            create_backbone(of_file.model_copy(update={"options": options}))


def mobilefacenet(*, pretrained: bool = False, **options: object) -> Any:
    chosen = config(NAME, family="mobilefacenet", **options)
    return create_backbone(chosen.model_copy(update={"pretrained": pretrained})).eval()


def test_every_convolution_starts_from_the_published_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {own: theirs for theirs, own in family._OWN_NAMES.items()}
    stored = {"conv3.weight": torch.zeros(128, 512, 1, 1), "bn.weight": torch.ones(128)}  # of an embedding
    for name, tensor in mobilefacenet().state_dict().items():
        module, _, kind = name.rpartition(".")
        if module != "head":
            stored[f"{names.get(module, module)}.{kind}"] = torch.rand_like(tensor) if tensor.ndim else tensor
    torch.save(stored, path := tmp_path / "mobilefacenet.pt")
    with pytest.raises(PretrainedWeightsUnavailable, match=r"has sha256 .*set MIEN_MOBILEFACENET"):
        mobilefacenet(pretrained=True, weights=path)
    monkeypatch.setattr(family, "FILE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setenv("MIEN_MOBILEFACENET", str(path))
    own = mobilefacenet(pretrained=True).state_dict()
    for name, theirs in (
        ("conv1.0.weight", "conv1.0.weight"),
        ("dw_conv.1.1.running_var", "dw_conv.bn2.running_var"),
        ("features.14.conv.3.bias", "features.14.conv.3.bias"),
        ("conv2.0.weight", "conv2.0.weight"),
    ):
        torch.testing.assert_close(own[name], stored[theirs])
    fresh = [key for key in own if not any(torch.equal(own[key], tensor) for tensor in stored.values())]
    assert fresh == ["head.weight", "head.bias"]


def test_frozen_layers_keep_their_weights_and_statistics() -> None:
    assert all(weight.requires_grad for weight in mobilefacenet().parameters())
    network = mobilefacenet(frozen=1).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    optimizer = torch.optim.SGD([weight for weight in network.parameters() if weight.requires_grad], lr=0.1)
    heads_of(network, torch.randn(2, 1, 112, 112)).class_logits.square().sum().backward()
    optimizer.step()
    changed = {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert not [name for name in changed if name.startswith(("conv1.", "dw_conv.", "features.0."))]
    assert {"features.1.conv.0.0.weight", "features.1.conv.0.1.running_mean", "head.weight"} <= changed
