"""Backbone families, found by their file names."""

import time
from pathlib import Path

import pytest
import torch

from mien.models.backbones import PretrainedWeightsUnavailable, UnknownBackbone, create_backbone, families
from tests.support.models import config


def test_every_family_rejects_an_unknown_model_name() -> None:
    assert {"cnn", "deit"} <= set(families())
    for family in families():
        with pytest.raises(UnknownBackbone, match="no model 'nosuchnet'"):
            create_backbone(config("nosuchnet", family=family))


DEIT = "deit_tiny_patch16_224"
SHALLOW_STEM = {"patch_px": 8, "stem": "hybrid", "stem_widths": [8], "stem_blocks": [1, 1]}


def test_a_network_without_stochastic_depth_is_built_unless_it_is_requested() -> None:
    chosen = config("ghostnet_100", family="cnn")
    assert isinstance(create_backbone(chosen), torch.nn.Module)
    with pytest.raises(UnknownBackbone, match="drop_path_rate"):
        create_backbone(chosen.model_copy(update={"drop_path_rate": 0.1}))


@pytest.mark.parametrize(
    ("family", "name", "changes", "complaint"),
    [
        ("deit", DEIT, {"options": {"num_heads": 5}}, "rejects these options"),
        ("deit", DEIT, {"options": {"patch_px": 0}}, "patch_px 0"),
        ("deit", DEIT, {"options": {"nope": 1}}, "unexpected keyword"),
        ("deit", DEIT, {"options": SHALLOW_STEM}, "3 stride-2 convolutions"),
        ("cnn", DEIT, {}, r"model\.family=deit"),
        ("mlp", DEIT, {}, "cnn, deit"),
        ("mobilefacenet", "mobilefacenet", {"img_size": 64}, "require 112"),
        ("mobilefacenet", "mobilefacenet", {"drop_path_rate": 0.1}, r"remove model\.drop_path_rate"),
        ("mobilefacenet", "mobilefacenet", {"options": {"depth": 3}}, "takes weights and frozen; found depth"),
    ],
)
def test_options_and_families_that_fit_no_network_are_named(
    family: str, name: str, changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(UnknownBackbone, match=complaint):
        create_backbone(config(name, family=family).model_copy(update=changes))


@pytest.mark.parametrize(
    ("family", "name"),
    [("cnn", "resnet18d"), ("cnn", "regnety_002"), ("mobilefacenet", "mobilefacenet")],
)
def test_class_maps_average_to_the_logits_up_to_a_constant(family: str, name: str) -> None:
    network = create_backbone(config(name, family=family)).eval()
    with torch.no_grad():
        heads = network(torch.randn(2, 1, 112, 112))
    assert heads.class_maps is not None
    assert heads.class_maps.shape[2] > 1
    maps, logits = heads.class_maps.mean(dim=(2, 3)), heads.class_logits
    torch.testing.assert_close(maps.diff(dim=0), logits.diff(dim=0), atol=1e-6, rtol=1e-2)


def test_published_weights_that_cannot_be_downloaded_are_reported_within_seconds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    started = time.monotonic()
    with pytest.raises(PretrainedWeightsUnavailable, match=r"model\.init_from=FILE.*model\.pretrained=false"):
        create_backbone(config("resnet18d", family="cnn").model_copy(update={"pretrained": True}))
    assert time.monotonic() - started < 10
