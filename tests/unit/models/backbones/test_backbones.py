"""Backbone families, found by their file names."""

import pytest

from models.backbones import UnknownBackbone, create_backbone, families
from tests.support_models import config


def test_every_family_rejects_an_unknown_model_name() -> None:
    assert {"cnn", "deit"} <= set(families())
    for family in families():
        with pytest.raises(UnknownBackbone, match="no model 'nosuchnet'"):
            create_backbone(family, config("nosuchnet"))


def test_an_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(UnknownBackbone, match="cnn, deit"):
        create_backbone("mlp", config("resnet18"))
