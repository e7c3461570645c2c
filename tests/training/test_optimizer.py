"""Parameter groups, learning rate schedule and moving average."""

from pathlib import Path

import pytest
import torch
from torch import nn

from mien.models.network import FaceNetwork
from mien.training.config import OptimConfig, RecipeError
from mien.training.optimizer import build_optimizer, build_scheduler
from tests.support.training import TINY_DEIT, small_recipe


def tiny(model: dict[str, object] = TINY_DEIT) -> FaceNetwork:
    return FaceNetwork(small_recipe(Path("faces"), model=model).model)


def rate_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, float]:
    by_id = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    return {name: by_id[id(p)] for name, p in network.named_parameters() if p.requires_grad}


def test_each_layer_learns_slower_than_the_one_after_it_and_all_are_trained() -> None:
    network = tiny()
    optim = OptimConfig(learning_rate=1e-2, layer_decay=0.5, warmup_epochs=0)
    optimizer = build_optimizer(network, optim)
    build_scheduler(optimizer, optim, epochs=2, steps_per_epoch=4).step_update(0)
    rates = rate_of(network, optimizer)
    assert set(rates) == {name for name, p in network.named_parameters() if p.requires_grad}
    inside = "backbone.network."
    chain = ["patch_embed.layers.0.weight", "blocks.0.attn.qkv.weight", "blocks.1.attn.qkv.weight", "head.weight"]
    found = [rates[inside + name] for name in chain]
    assert found == pytest.approx([1e-2 / 8, 1e-2 / 4, 1e-2 / 2, 1e-2])
    assert rates[inside + "head_dist.weight"] == rates[inside + "head.weight"]
    assert rates[inside + "dist_token"] == rates[inside + "pos_embed"] == rates[inside + chain[0]]


def test_the_layers_of_mobilefacenet_learn_from_its_last_map_to_its_first() -> None:
    network = tiny({"family": "mobilefacenet", "name": "mobilefacenet"})
    optimizer = build_optimizer(network, OptimConfig(layer_decay=0.5))
    scale_of = {id(p): group["lr_scale"] for group in optimizer.param_groups for p in group["params"]}
    found = {name: scale_of[id(p)] for name, p in network.named_parameters()}
    steps_from_head = {"head.weight": 0, "conv2.0.weight": 1, "gdconv.1.bias": 1, "features.14.conv.0.0.weight": 2}
    steps_from_head |= {"features.0.conv.0.0.weight": 16, "dw_conv.0.0.weight": 17, "conv1.0.weight": 17}
    assert {name: found[f"backbone.{name}"] for name in steps_from_head} == pytest.approx(
        {name: 0.5**steps for name, steps in steps_from_head.items()}
    )


SWIN: dict[str, object] = {
    "family": "swin", "name": "swin_tiny_patch4_window7_224", "img_size": 56,
    "options": {"patch_size": 4, "window_size": 7, "embed_dim": 16, "depths": [1], "num_heads": [2]},
}  # fmt: skip


@pytest.mark.parametrize("layer_decay", [None, 0.75])
@pytest.mark.parametrize("model", [TINY_DEIT, SWIN], ids=["deit", "swin"])
def test_matrices_decay_and_norms_biases_tokens_and_positions_do_not(
    model: dict[str, object], layer_decay: float | None
) -> None:
    network = tiny(model)
    optimizer = build_optimizer(network, OptimConfig(weight_decay=0.1, layer_decay=layer_decay))
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in network.named_parameters():
        positions = ("pos_embed", "relative_position_bias_table")
        plain = parameter.ndim <= 1 or name.endswith(("cls_token", "dist_token", *positions))
        assert decay[id(parameter)] == (0.0 if plain else 0.1), name


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (OptimConfig(layer_decay=0.5), "has no layer groups"),
        (OptimConfig(name="lamp"), "did you mean lamb"),
        (OptimConfig(options={"betos": [0.9, 0.95]}), "betos"),
        (OptimConfig(name="adahessian"), "adahessian: needs second derivatives"),
    ],
)
def test_an_optimizer_that_does_not_exist_or_fit_is_named(config: OptimConfig, complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        build_optimizer(nn.Linear(2, 2), config)


def test_the_cosine_starts_at_the_peak_where_the_warm_up_ends() -> None:
    optim = OptimConfig(learning_rate=0.02, min_learning_rate=0.0, warmup_epochs=1.0)
    optimizer = build_optimizer(nn.Linear(2, 2), optim)
    scheduler = build_scheduler(optimizer, optim, epochs=5, steps_per_epoch=10)
    rates = []
    for step in range(50):
        scheduler.step_update(step)
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates[10] == pytest.approx(0.02)
    assert rates[30] == pytest.approx(0.01)  # half of the cosine
    assert rates[49] < 1e-4
