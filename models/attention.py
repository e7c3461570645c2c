"""Internals of a transformer for analysis: tokens after each block, attention and position embedding.

Used by the figures of docs/how-it-works.md. models/rollout.py holds the part that is exported
with the graph.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mien.models.network import FaceNetwork
from mien.models.rollout import recorded_attention


@dataclass(frozen=True, slots=True)
class Trace:
    """Intermediate results of a forward pass.

    Attributes:
        attention: one (B, heads, tokens, tokens) per block, after softmax; the prefix tokens come first.
        prefix: (B, blocks + 1, prefix, dim): the class token, and the distillation token if there is one, after each
            block and after the last norm.
    """

    attention: list[Tensor]
    prefix: Tensor


def grid_side(network: FaceNetwork) -> int:
    """Number of patches along one side of the crop."""
    inner: Any = network.backbone.network
    return int(inner.patch_embed.grid_size[0])


@torch.no_grad()
def trace(network: FaceNetwork, crops: Tensor) -> Trace:
    """Run a transformer with a class token on crops (B, 112, 112, C) uint8 and record its internals."""
    inner: Any = network.backbone.network
    states: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
        states.append(output[:, : inner.num_prefix_tokens].float())

    hooks = [module.register_forward_hook(keep) for module in (*inner.blocks, inner.norm)]
    try:
        with recorded_attention(network.backbone) as attention:
            network(crops)
    finally:
        for hook in hooks:
            hook.remove()
    return Trace([weights.float() for weights in attention], torch.stack(states, dim=1))


def learned_token_cosine(network: FaceNetwork) -> float:
    """Cosine between the learned class and distillation tokens; Touvron et al. 2021, section 4, report 0.06."""
    inner: Any = network.backbone.network
    with torch.no_grad():
        return float(torch.cosine_similarity(inner.cls_token.flatten(), inner.dist_token.flatten(), dim=0))


def token_cosines(prefix: Tensor) -> Tensor:
    """Cosine between class and distillation token, (B, blocks + 1), from a trace's (B, blocks + 1, 2, dim)."""
    return torch.cosine_similarity(prefix[:, :, 0], prefix[:, :, 1], dim=-1)


def position_similarity(network: FaceNetwork) -> Tensor | None:
    """Cosine between the position embeddings of all patches; None without an embedding.

    Returns: (side, side, side, side): row and column of the first patch, then of the second.
    Source: Dosovitskiy et al. 2021, figure 7.
    """
    inner: Any = network.backbone.network
    if getattr(inner, "pos_embed", None) is None:
        return None
    side = grid_side(network)
    positions = torch.nn.functional.normalize(inner.pos_embed.detach()[0, -side * side :].float(), dim=-1)
    return (positions @ positions.T).reshape(side, side, side, side)


def attention_distances(attention: Tensor, *, patch_px: float) -> Tensor:
    """Mean attention distance: distance between patches weighted by attention, in pixels.

    Args:
        attention: (B, heads, tokens, tokens) of one block; attention to prefix tokens is ignored.
        patch_px: side of a patch, in pixels of the crop.
    Returns: (heads,).
    Source: Dosovitskiy et al. 2021, appendix D.7.
    """
    tokens = attention.shape[-1]
    side = int((tokens - 1) ** 0.5)
    prefix = tokens - side * side
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    positions = torch.stack([rows.flatten(), columns.flatten()], dim=-1).float() * patch_px
    between = attention[:, :, prefix:, prefix:]
    shares = between / between.sum(dim=-1, keepdim=True)
    return (shares * torch.cdist(positions, positions)).sum(dim=-1).mean(dim=(0, 2))
