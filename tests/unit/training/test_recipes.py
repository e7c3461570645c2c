"""All recipes: correct header, and a network that learns from a batch."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch

from mien.models.network import FaceNetwork
from mien.training.config import ModelConfig, Recipe, read_as
from mien.training.distillation.losses import cross_entropy, distillation_loss
from mien.training.loop.run_folder import parameters
from mien.training.variants import RUNS, recipes_of
from tests.support_models import crops

FOLDER = Path(__file__).parents[3] / "training" / "recipes"
RECIPES = sorted(FOLDER.glob("*.yaml"))
EXPERIMENTS = sorted((FOLDER / "experiments").glob("*.yaml"))


def read(path: Path) -> Recipe:
    return read_as(Recipe, path, ["model.pretrained=false"])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_builds_a_network_of_the_size_it_states_that_learns(path: Path) -> None:
    recipe = read(path)
    assert recipe.name == path.stem
    weights = (*recipe.distillation.teachers, *filter(None, [recipe.model.init_from]))
    assert [path for path in weights if path.parts[0] != "runs" and not path.is_absolute()] == []
    network = FaceNetwork(recipe.model).train()
    count = parameters(network)
    stated = re.search(r"([\d.]+) M parameters", " ".join(path.read_text(encoding="utf-8").split("\n# ")))
    assert stated is not None
    assert float(stated[1]) == pytest.approx(count / 1e6, abs=0.051)
    pixels = crops(2, channels=1 if recipe.model.color == "luminance" else 3)
    heads = network(pixels)
    loss = cross_entropy(heads.class_logits, torch.eye(7)[:2])
    if recipe.distillation.teachers:
        loss = loss + distillation_loss(heads, torch.randn(2, 7), recipe.distillation)
    loss.backward()  # type: ignore[no-untyped-call]
    assert torch.isfinite(loss)
    silent = [name for name, weight in network.named_parameters() if weight.requires_grad and weight.grad is None]
    assert silent == []


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_row_of_an_experiment_builds_a_network_that_fits_its_distillation(path: Path) -> None:
    rows = {row: of_seeds[0] for row, of_seeds in recipes_of(path, reduced=False).items()}
    different = {(recipe.model.model_dump_json(), recipe.distillation.mode): row for row, recipe in rows.items()}
    for row in different.values():
        recipe = rows[row]
        distilled = has_distillation_head(recipe.model.model_copy(update={"pretrained": False}).model_dump_json())
        assert distilled == recipe.distillation.mode.startswith("token-"), row


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
@pytest.mark.parametrize("reduced", [False, True])
def test_students_learn_from_a_row_of_their_seed_and_faces_that_is_trained_before(path: Path, reduced: bool) -> None:
    recipes = [recipe for of_seeds in recipes_of(path, reduced=reduced).values() for recipe in of_seeds]
    trained: dict[Path, Recipe] = {}
    for recipe in recipes:
        for folder in recipe.distillation.teachers:
            if folder.is_relative_to(RUNS):
                assert (trained[folder].seed, trained[folder].data.train) == (recipe.seed, recipe.data.train)
        trained[RUNS / recipe.name] = recipe
    assert len(trained) == len(recipes) >= 2


@cache
def has_distillation_head(model: str) -> bool:
    """Whether a network, which several experiments may have, has a distillation head."""
    config = ModelConfig.model_validate_json(model)
    with torch.inference_mode():
        heads = FaceNetwork(config).eval()(crops(2, channels=1 if config.color == "luminance" else 3))
    assert heads.class_logits.shape == (2, 7)
    return heads.distillation_logits is not None
