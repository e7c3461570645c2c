"""Parameter groups, learning rate schedule and sharpness-aware minimization."""

from pathlib import Path

import pytest
import torch
from torch import nn

from mien.models.network import FaceNetwork
from mien.training.config import OptimConfig
from mien.training.train import build_optimizer, build_scheduler, perturbed_weights
from tests.support.training import TINY_DEIT, small_recipe


def tiny() -> nn.Module:
    return FaceNetwork(small_recipe(Path("faces"), model=TINY_DEIT).model).backbone


def test_each_layer_learns_slower_than_the_one_after_it_and_all_are_trained() -> None:
    network = tiny()
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


def rates_of(optim: OptimConfig, *, epochs: int) -> list[float]:
    """Learning rates of epochs of ten steps."""
    optimizer = build_optimizer(nn.Linear(2, 2), optim)
    scheduler, rates = build_scheduler(optimizer, optim, epochs=epochs, steps_per_epoch=10), list[float]()
    for step in range(10 * epochs):
        scheduler.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def test_the_cosine_starts_at_the_peak_where_the_warm_up_ends() -> None:
    rates = rates_of(OptimConfig(learning_rate=0.02, min_learning_rate=0.0, warmup_epochs=1.0), epochs=5)
    assert rates[10] == pytest.approx(0.02)
    assert rates[30] == pytest.approx(0.01)  # half of the cosine
    assert rates[49] < 1e-4


def test_sam_computes_the_gradient_at_perturbed_weights_and_restores_them() -> None:
    network = nn.Linear(1, 1, bias=False)
    nn.init.constant_(network.weight, 2.0)
    network(torch.ones(1, 1)).square().backward()  # gradient 2 w = 4
    with perturbed_weights(network, 0.5):
        assert network.weight.item() == pytest.approx(2.5)
        assert network.weight.grad is None
        network(torch.ones(1, 1)).square().backward()
    assert network.weight.item() == 2.0
    assert network.weight.grad is not None
    assert network.weight.grad.item() == pytest.approx(5.0)


def test_the_second_pass_of_sam_leaves_the_running_statistics_as_they_are() -> None:
    network = nn.Sequential(nn.Linear(1, 1), norm := nn.BatchNorm1d(1))
    faces = torch.arange(4.0)[:, None]
    network(faces).square().sum().backward()
    before = norm.running_mean.clone()
    with perturbed_weights(network, 0.5):
        network(faces + 9)
    assert torch.equal(norm.running_mean, before)
    network(faces + 9)
    assert not torch.equal(norm.running_mean, before)


@pytest.mark.parametrize(("epochs", "steps_of_warmup"), [(1, 1), (30, 10)])
def test_a_short_training_is_not_all_warm_up(epochs: int, steps_of_warmup: int) -> None:
    rates = rates_of(OptimConfig(learning_rate=0.02), epochs=epochs)
    assert rates.index(max(rates)) == steps_of_warmup
    assert max(rates) == pytest.approx(0.02)
