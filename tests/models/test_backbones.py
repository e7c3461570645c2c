"""Backbones: published weights, frozen layers, and a Swin transformer by its name."""

import hashlib
import socket
import time
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from mien.models.backbones import PretrainedWeightsUnavailable, create_backbone
from mien.models.backbones import mobilefacenet as family
from mien.models.backbones.mobilefacenet import FILE_NAME, NAME, PATH_VARIABLE, published_weights
from mien.models.network import heads_of
from tests.support.models import DEIT, config


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://hub.invalid"], ids=["refused", "name unresolved"])
def test_published_weights_that_cannot_be_downloaded_are_reported_within_seconds(
    address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    monkeypatch.setattr("mien.models.backbones._timm._REACHABLE_S", 0.5)
    given_up = Event()
    if "invalid" in address:
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: given_up.wait(100))
    started = time.monotonic()
    with pytest.raises(PretrainedWeightsUnavailable, match=r"overlay=\{file: FILE\}.*model\.pretrained=false"):
        create_backbone(config("resnet18d", family="cnn").model_copy(update={"pretrained": True}))
    given_up.set()
    assert time.monotonic() - started < 10


def test_a_file_of_published_weights_initializes_a_network_for_luminance(tmp_path: Path) -> None:
    published = timm.create_model("test_resnet", num_classes=1000).state_dict()
    path = tmp_path / "published.pth"
    torch.save({"state_dict": {f"module.{name}": value for name, value in published.items()}}, path)
    of_file = config("test_resnet", family="cnn", pretrained_cfg_overlay={"file": str(path)})
    of_file = of_file.model_copy(update={"pretrained": True})
    own = create_backbone(of_file).state_dict()
    assert torch.equal(own["layer1.0.conv1.weight"], published["layer1.0.conv1.weight"])
    torch.testing.assert_close(own["conv1.0.weight"], published["conv1.0.weight"].sum(dim=1, keepdim=True))
    for damaged in (b"", b"rubbish"):
        path.write_bytes(damaged)
        with pytest.raises(PretrainedWeightsUnavailable, match="test_resnet cannot be loaded"):
            create_backbone(of_file)


def mobilefacenet(name: str = NAME, *, pretrained: bool = False, **options: object) -> Any:
    chosen = config(name, family="mobilefacenet", **options)
    return create_backbone(chosen.model_copy(update={"pretrained": pretrained})).eval()


def _published(network: Any) -> dict[str, Tensor]:
    """State dict with the names of the published file, including an embedding."""
    names = {own: theirs for theirs, own in family._OWN_NAMES.items()}
    weights = {"conv3.weight": torch.zeros(128, 512, 1, 1), "bn.weight": torch.ones(128)}
    for name, tensor in network.state_dict().items():
        module, _, kind = name.rpartition(".")
        if module != "head":
            weights[f"{names.get(module, module)}.{kind}"] = torch.rand_like(tensor) if tensor.ndim else tensor
    return weights


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / FILE_NAME
    torch.save(_published(mobilefacenet()), path)
    monkeypatch.setattr(family, "FILE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setenv(PATH_VARIABLE, str(path))
    return path


@pytest.mark.parametrize("name", [NAME, DEIT])
def test_every_convolution_starts_from_the_published_weights(name: str, file: Path) -> None:
    network = mobilefacenet(name, pretrained=True)
    own = network.state_dict() if name == NAME else network.patch_embed.state_dict()
    stored = published_weights(file)
    torch.testing.assert_close(own["conv1.0.weight"], stored["conv1.0.weight"])
    torch.testing.assert_close(own["dw_conv.1.1.running_var"], stored["dw_conv.bn2.running_var"])
    torch.testing.assert_close(own["features.14.conv.3.bias"], stored["features.14.conv.3.bias"])
    torch.testing.assert_close(own["conv2.0.weight"], stored["conv2.0.weight"])
    fresh = [key for key in own if not any(torch.equal(own[key], tensor) for tensor in stored.values())]
    assert {key.split(".")[0] for key in fresh} == {"head" if name == NAME else "projection"}


def test_frozen_layers_keep_their_weights_and_statistics() -> None:
    network = mobilefacenet(frozen=1).train()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    optimizer = torch.optim.SGD([weight for weight in network.parameters() if weight.requires_grad], lr=0.1)
    heads_of(network, torch.randn(2, 1, 112, 112)).class_logits.square().sum().backward()
    optimizer.step()
    changed = {name for name, tensor in network.state_dict().items() if not torch.equal(tensor, before[name])}
    assert not [name for name in changed if name.startswith(("conv1.", "dw_conv.", "features.0."))]
    assert {"features.1.conv.0.0.weight", "features.1.conv.0.1.running_mean", "head.weight"} <= changed


def test_a_swin_transformer_is_built_by_its_name() -> None:
    network = create_backbone(
        config("swin_tiny_patch4_window7_224", img_size=56, patch_px=4, depths=[1, 1], num_heads=[3, 6])
    )
    assert network.eval()(torch.randn(2, 1, 56, 56)).shape == (2, 7)
