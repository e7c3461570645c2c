"""Backbone families, found by their file names."""

import pytest

from models.backbones import UnknownBackbone, create_backbone, families
from tests.support_models import config


def test_every_family_rejects_an_unknown_model_name() -> None:
    assert {"cnn", "deit"} <= set(families())
    for family in families():
        with pytest.raises(UnknownBackbone, match="no model 'nosuchnet'"):
            create_backbone(family, config("nosuchnet"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"num_heads": 5}, "rejects these options"), ({"patch_px": 0}, "patch_px 0"), ({"nope": 1}, "unexpected keyword")],
)
def test_options_that_fit_no_network_are_named(options: dict[str, int], complaint: str) -> None:
    with pytest.raises(UnknownBackbone, match=complaint):
        create_backbone("deit", config("deit_tiny_patch16_224", **options))


def test_an_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(UnknownBackbone, match="cnn, deit"):
        create_backbone("mlp", config("resnet18"))
