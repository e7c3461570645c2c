"""Heads of a distilled network: only those that were trained are candidates for selection."""

from itertools import count
from pathlib import Path

import pytest
import torch

from mien.data.contract import Array
from mien.models.network import FaceNetwork
from mien.training import checkpoint
from mien.training.faces import Split
from mien.training.train import train
from tests.support.training import TINY_DEIT, drawn_faces, metric_lines, small_recipe
from tests.training.conftest import Trained

HEADS = {"class": "backbone.network.head.weight", "distillation": "backbone.network.head_dist.weight"}


@pytest.mark.parametrize(
    ("mode", "weight", "heads"),
    [
        ("none", 0.5, ["class"]),
        ("soft", 0.5, ["class"]),
        ("hard", 1.0, ["class"]),
        ("token-soft", 0.5, ["class", "distillation", "mean"]),
        ("token-hard", 1.0, ["distillation"]),
        ("token-soft", 0.0, ["class"]),
    ],
)
def test_only_heads_that_were_trained_are_selected(
    mode: str, weight: float, heads: list[str], trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = drawn_faces(tmp_path / "faces", train=2, valid=1)
    scores = count()

    def rising(_logits: Array, _valid: Split) -> dict[str, float]:  # the last candidate is the best one
        return dict.fromkeys(("accuracy", "mean_class_accuracy"), next(scores) / 100)

    monkeypatch.setattr("mien.training.train._score", rising)
    recipe = small_recipe(
        root,
        model=TINY_DEIT,
        epochs=1,
        optim={"learning_rate": 3e-3, "warmup_epochs": 0, "weight_decay": 0, "ema_decay": None},
        distillation={"mode": mode, "weight": weight, "teachers": [str(trained.teacher)] if mode != "none" else []},
    )
    run = train(recipe, tmp_path / "run")
    assert metric_lines(run)[-1]["head"] == heads[-1]
    torch.manual_seed(recipe.seed)
    initial = FaceNetwork(recipe.model).state_dict()
    best = checkpoint.read(run / checkpoint.BEST)["weights"]
    changed = [head for head, name in HEADS.items() if not torch.equal(initial[name], best[name])]
    assert changed == [head for head in heads if head != "mean"]
