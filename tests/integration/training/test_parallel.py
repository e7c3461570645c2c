"""Training in two gloo processes equals training in one process with the same global batches."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from mien.training.config import Recipe, RecipeError
from mien.training.loop import checkpoint
from mien.training.loop.run import check_batch_size
from mien.training.loop.run_folder import FACTS_NAME
from mien.training.train import train
from tests.support import ROOT, output_of
from tests.support_training import (
    PLAIN_DEIT,
    drawn_faces,
    losses,
    small_recipe,
    stopped_after,
    with_runtime,
    write_recipe,
)

STEADY = PLAIN_DEIT | {"name": "deit_tiny_distilled_patch16_224"}  # BatchNorm has statistics per process on the CPU


def recipe_of(root: Path, **changes: object) -> Recipe:
    mixed = {"mix": {"mixup": 0.4, "cutmix": 1.0, "probability": 0.5}}
    return small_recipe(root, model=STEADY, epochs=8, **(mixed | changes))


def train_in_two(recipe: Recipe, out: Path) -> None:
    path = write_recipe(out.parent / "recipe.yaml", recipe)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, "-m", "mien.training.train", str(path), "--out", str(out)]
    output_of(*command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_processes_have_the_losses_of_one_and_can_be_resumed(tmp_path: Path) -> None:
    recipe = recipe_of(drawn_faces(tmp_path / "faces"))
    expected = losses(train(recipe, tmp_path / "one"))
    assert len(expected) == 56
    out = tmp_path / "two"
    train_in_two(recipe, out)
    found = losses(out)
    assert found == pytest.approx(expected, abs=1e-3)
    assert json.loads((out / FACTS_NAME).read_text())["processes"] == 2
    one, two = (checkpoint.read(folder / checkpoint.BEST) for folder in (tmp_path / "one", out))
    for name, weight in one["weights"].items():
        torch.testing.assert_close(two["weights"][name], weight, atol=1e-3, rtol=1e-2)
    resumed = tmp_path / "resumed"
    with stopped_after(21):
        train(recipe, resumed)
    train_in_two(recipe, resumed)
    assert losses(resumed) == pytest.approx(expected, abs=1e-3)


def test_parts_of_a_process_have_two_samples(tmp_path: Path) -> None:
    recipe = recipe_of(drawn_faces(tmp_path / "faces", train=2, valid=1), batch_size=8)
    with pytest.raises(RecipeError, match="expected at least 12, two samples for each part"):
        check_batch_size(with_runtime(recipe, accumulate=3), 2)


@pytest.mark.parametrize("changes", [{"batch_size": 10}, {"batch_size": 9}])
def test_a_batch_that_processes_cannot_share_evenly_is_rejected(tmp_path: Path, changes: dict[str, object]) -> None:
    recipe = recipe_of(drawn_faces(tmp_path / "faces", train=2, valid=1), **changes)
    with pytest.raises(RecipeError, match="a multiple of 4"):
        check_batch_size(recipe, 2)
