"""What a recipe may take of a data set: a part of each class, or faces without their labels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from data.contract import LABELS
from models.backbones import Heads
from tests.support_training import drawn_faces, small_recipe
from training.config import DataSource, RecipeError
from training.distill import distillation_loss
from training.loader import Faces, load_faces


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return drawn_faces(tmp_path_factory.mktemp("sources") / "faces", train=10, valid=1)


def load(root: Path, **changes: object) -> Faces:
    source = DataSource(kind="folders", split="train", root=root, **changes)  # type: ignore[arg-type]
    return load_faces(source, colour="luminance", cache_dir=root.parent / "cache")


def test_a_fraction_takes_its_share_of_each_class_and_lies_within_a_larger_one(root: Path) -> None:
    whole, most, few = (load(root, fraction=fraction) for fraction in (1.0, 0.5, 0.2))
    assert np.bincount(whole.labels).tolist() == [10] * 7
    assert np.bincount(most.labels).tolist() == [5] * 7
    assert np.bincount(few.labels).tolist() == [2] * 7
    assert set(few.keys) < set(most.keys) < set(whole.keys)


def test_the_crops_of_a_fraction_are_those_of_its_faces(root: Path) -> None:
    whole = load(root)
    for fraction in (0.5, 0.45):
        part = load(root, fraction=fraction)
        places = [whole.keys.index(key) for key in part.keys]
        assert np.array_equal(part.crops, whole.crops[places])
        assert np.array_equal(part.labels, whole.labels[places])


def test_faces_for_the_teacher_carry_no_label_into_the_loss(root: Path) -> None:
    targets = torch.from_numpy(np.concatenate([load(root).targets[:7], load(root, target="teacher").targets[:7]]))
    logits = torch.randn(14, 7, generator=torch.Generator().manual_seed(0), requires_grad=True)
    recipe = small_recipe(root, distillation={"mode": "soft", "teachers": ["t"], "weight": 0.5})
    parts = distillation_loss(Heads(logits), targets, torch.randn(14, 7), recipe.distillation)
    (gradient,) = torch.autograd.grad(parts.supervised, logits, retain_graph=True)
    assert gradient[:7].abs().min() > 0
    assert gradient[7:].abs().max() == 0
    (taught,) = torch.autograd.grad(parts.distillation, logits)
    assert (taught.abs().sum(dim=1) > 0).all()


def test_faces_for_the_teacher_without_one_are_refused(root: Path) -> None:
    train = [{"kind": "folders", "split": "train", "root": str(root), "target": "teacher"}]
    data = {"train": train, "valid": {"kind": "folders", "split": "valid", "root": str(root)}}
    with pytest.raises(RecipeError, match="needs a distillation mode"):
        small_recipe(root, data=data)
    taught = {"mode": "soft", "teachers": ["runs/t"]}
    assert small_recipe(root, data=data, distillation=taught).data.train[0].target == "teacher"
    with pytest.raises(RecipeError, match="label_smoothing 0"):
        small_recipe(root, data=data, distillation=taught, loss={"label_smoothing": 0.1})


def test_every_class_keeps_its_name_under_a_fraction(root: Path) -> None:
    part = load(root, fraction=0.1)
    assert [LABELS[label] for label in np.unique(part.labels)] == list(LABELS)
