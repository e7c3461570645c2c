"""One training step: its losses by an own formula, what stops it, optimizer and schedule."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

import mien.training.losses
from mien.models.backbones import Heads, UnknownBackbone
from mien.models.network import FaceNetwork
from mien.training.config import OptimConfig, RecipeError
from mien.training.run import LAST, TrainingDiverged, load
from mien.training.train import build_optimizer, build_scheduler, losses, train
from tests.support.training import TINY_DEIT, drawn_faces, metric_lines, small_recipe, with_runtime

COUNTS = np.array([20, 3, 3, 9, 9, 6, 6])


@pytest.mark.parametrize(("tau", "weight"), [(0.5, 0.25), (1.0, 1.0)])
def test_loss_has_the_adjustment_and_the_share_of_the_teacher(tau: float, weight: float) -> None:
    logits, teacher, other = np.random.default_rng(0).normal(size=(3, 28, 7))
    targets, log_prior = softmax(other, axis=1), np.log(COUNTS / COUNTS.sum())
    values = {"mode": "soft", "weight": weight, "temperature": 2.0, "teachers": ["runs/teacher"]}
    recipe = small_recipe(Path("faces"), loss={"logit_adjustment": tau}, distillation=values)
    heads, *others = map(torch.from_numpy, (logits, targets, teacher))
    parts = losses(Heads(heads), *others, recipe, log_prior=torch.from_numpy(log_prior))
    supervised = -(targets * log_softmax(logits + tau * log_prior, axis=1)).sum(axis=1).mean()
    expected, found = log_softmax(teacher / 2, axis=1), log_softmax(logits / 2, axis=1)
    divergence = (np.exp(expected) * (expected - found)).sum(axis=1).mean()
    assert parts["supervised"].item() == pytest.approx(supervised, rel=1e-4)
    assert parts["loss"].item() == pytest.approx((1 - weight) * supervised + weight * 4 * divergence, rel=1e-4)


def test_a_loss_is_a_file_of_its_name_and_wrong_names_are_rejected_before_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = drawn_faces(tmp_path / "faces", valid=1)
    (tmp_path / "halved.py").write_text("def loss(logits, targets, config):\n    return logits.sum() * 0 + 0.5\n")
    monkeypatch.setattr(mien.training.losses, "__path__", [*mien.training.losses.__path__, str(tmp_path)])
    run = train(small_recipe(root, epochs=1, loss={"name": "halved"}), tmp_path / "run")
    assert {line["loss"] for line in metric_lines(run) if "loss" in line} == {0.5}
    with pytest.raises(RecipeError, match=r"loss\.name 'focal': expected one of cross_entropy, halved"):
        train(small_recipe(root, loss={"name": "focal"}), tmp_path / "other")
    untaught = small_recipe(tmp_path / "no data", distillation={"mode": "soft", "teachers": ["nobody"]})
    with pytest.raises(RecipeError, match=r"nobody: not found"):
        train(untaught, tmp_path / "other")
    with pytest.raises(UnknownBackbone, match="this model has no distillation token"):
        train(small_recipe(root, distillation={"mode": "token-hard", "teachers": [str(run)]}), tmp_path / "other")


def test_a_gradient_that_is_not_finite_stops_the_run_before_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms = iter((1.0, 1.0, torch.nan, 1.0))

    def clip(parameters: Any, _norm: float) -> torch.Tensor:
        norm = torch.tensor(next(norms))
        for weight in parameters:
            weight.grad *= norm
        return norm

    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", clip)
    # with checkpoints of steps 2, 4, ...
    recipe = with_runtime(small_recipe(drawn_faces(tmp_path / "faces", valid=1)), log_every_steps=5)
    batch = "folders/train/anger/train001.png, folders/train/surprise/train017.png, "
    with pytest.raises(TrainingDiverged, match=f"step 2: loss or gradient is not finite.*inspect this batch: {batch}"):
        train(recipe, tmp_path / "run")
    state = load(tmp_path / "run" / LAST)
    assert state["step"] == 2
    assert all(value.isfinite().all() for value in state["network"].values() if value.is_floating_point())


def test_each_layer_learns_slower_than_the_one_after_it_and_all_are_trained() -> None:
    network = FaceNetwork(small_recipe(Path("faces"), model=TINY_DEIT).model).backbone
    optim = OptimConfig(learning_rate=1e-2, layer_decay=0.5, warmup_epochs=0)
    optimizer = build_optimizer(network, optim)
    build_scheduler(optimizer, optim, epochs=2, steps_per_epoch=4).step_update(0)
    by_id = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    rates = {name: by_id[id(p)] for name, p in network.named_parameters() if p.requires_grad}
    chain = ["patch_embed.layers.0.weight", "blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight", "head.weight"]
    found = [rates[name] for name in chain]
    assert found == pytest.approx([1e-2 / 8, 1e-2 / 4, 1e-2 / 2, 1e-2])
    assert rates["head_dist.weight"] == rates["head.weight"]
    assert rates["dist_token"] == rates["pos_embed"] == rates[chain[0]]


@pytest.mark.parametrize(("warmup_epochs", "epochs", "peak"), [(1.0, 5, 10), (None, 1, 1), (None, 30, 10)])
def test_a_cosine_starts_at_the_end_of_a_warm_up_that_is_short_in_a_short_training(
    warmup_epochs: float | None, epochs: int, peak: int
) -> None:
    optim = OptimConfig(learning_rate=0.02, min_learning_rate=0.0, warmup_epochs=warmup_epochs)
    optimizer = build_optimizer(nn.Linear(2, 2), optim)
    scheduler, rates = build_scheduler(optimizer, optim, epochs=epochs, steps_per_epoch=10), list[float]()
    for step in range(10 * epochs):
        scheduler.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[:peak] == pytest.approx(0.02 * np.arange(peak) / peak)
    assert rates[peak:] == pytest.approx(
        0.01 + 0.01 * np.cos(np.linspace(0, np.pi, 10 * epochs - peak, endpoint=False))
    )
