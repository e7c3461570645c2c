"""Measured statistics of norms, which leave the output unchanged, and a stem from another network."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from torch import nn

from mien.data.contract import CROP_PX, contract_id
from mien.models.backbones.mobilefacenet import NAME
from mien.models.network import FaceNetwork
from mien.training.loop import checkpoint
from mien.training.loop.run_folder import RECIPE_NAME
from mien.training.release.initialization import InitialWeightsError, load_initial, measure_norms
from tests.support_training import TINY_CNN, TINY_DEIT, small_recipe


def _logits(network: FaceNetwork, crops: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return network(crops).class_logits


@pytest.mark.parametrize("model", [TINY_CNN, TINY_DEIT | {"drop_path_rate": 0.0}], ids=["cnn", "hybrid"])
def test_measured_norms_keep_the_output_in_evaluation_and_training(model: dict[str, object]) -> None:
    torch.manual_seed(0)
    network = FaceNetwork(small_recipe(Path("faces"), model=model).model)
    for norm in (module for module in network.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.normal_(norm.bias, std=0.3)
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    crops = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (64, CROP_PX, CROP_PX, 1), dtype=np.uint8))
    before = _logits(network.eval(), crops)
    assert (_logits(copy.deepcopy(network).train(), crops) - before).abs().max() > 1e-2
    network.train()
    measure_norms(network, crops)
    assert network.training
    torch.testing.assert_close(_logits(network.eval(), crops), before, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(_logits(network.train(), crops), before, atol=5e-3, rtol=5e-3)


def test_a_trained_mobilefacenet_initializes_the_stem_of_a_student(tmp_path: Path) -> None:
    def network(name: str, **options: object) -> FaceNetwork:
        model = {"family": "mobilefacenet", "name": name, "normalization": "fixed", "options": options}
        return FaceNetwork(small_recipe(Path("faces"), model=model).model)

    trained = network(NAME)
    recipe = {"model": {"normalization": "fixed", "img_size": CROP_PX}}
    (tmp_path / RECIPE_NAME).write_text(yaml.safe_dump(recipe))
    checkpoint.save(tmp_path / checkpoint.BEST, {"weights": trained.state_dict(), "contract_id": contract_id()})
    student = network("deit_tiny_distilled_patch16_224", depth=1)
    before = copy.deepcopy(student.state_dict())
    load_initial(student, tmp_path)
    stem, convolutions = "backbone.network.patch_embed.", trained.state_dict()
    for name, tensor in student.state_dict().items():
        if name.startswith(stem) and "projection" not in name:
            torch.testing.assert_close(tensor, convolutions["backbone." + name.removeprefix(stem)])
        else:
            torch.testing.assert_close(tensor, before[name])
    with pytest.raises(InitialWeightsError, match="do not match"):
        load_initial(FaceNetwork(small_recipe(Path("faces"), model=TINY_DEIT).model), tmp_path)
