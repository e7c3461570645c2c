"""A stem from another network."""

import copy
from pathlib import Path

import pytest
import torch
import yaml

from mien.data.contract import CROP_PX, contract_id
from mien.models.backbones.mobilefacenet import NAME
from mien.models.network import FaceNetwork
from mien.training.loop import checkpoint
from mien.training.loop.run_folder import RECIPE_NAME
from mien.training.release.initialization import InitialWeightsError, load_initial
from tests.support_training import TINY_DEIT, small_recipe


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
