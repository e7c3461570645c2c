"""Attention rollout of a transformer, exported as a second output of the released graph.

It shows where information came from; it is the same for all classes and does not explain why one was predicted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from mien.models.network import Head

_TOKEN_ROWS: dict[Head, tuple[int, ...]] = {"class": (0,), "distillation": (1,), "mean": (0, 1)}


def has_attention(backbone: nn.Module) -> bool:
    """Whether a backbone is a transformer with a class token, over a grid of patches as in models/backbones/deit.py."""
    return isinstance(backbone, VisionTransformer) and len(backbone.blocks) > 0 and backbone.cls_token is not None


@contextmanager
def recorded_attention(backbone: Any) -> Iterator[list[Tensor]]:
    """Collect each block's attention, (B, heads, tokens, tokens) after softmax, while the backbone runs."""
    seen: list[Tensor] = []

    def record(_module: nn.Module, _inputs: tuple[Tensor, ...], attention: Tensor) -> None:
        seen.append(attention)

    attentions = [block.attn for block in backbone.blocks]
    fused = [attention.fused_attn for attention in attentions]
    hooks = [attention.attn_drop.register_forward_hook(record) for attention in attentions]
    for attention in attentions:
        attention.fused_attn = False  # the fused kernel does not return the weights
    try:
        yield seen
    finally:
        for attention, was_fused, hook in zip(attentions, fused, hooks, strict=True):
            attention.fused_attn = was_fused
            hook.remove()


def rollout(attentions: list[Tensor], *, head: Head) -> Tensor:
    """Combine attention over the layers, with weight 0.5 for the residual connection.

    Args:
        attentions: one (B, heads, tokens, tokens) per block; class token first, then the distillation token if any.
        head: the head whose token is traced back to the patches.
    Returns: (B, side, side) float32, rows from the top; maps sum to 1.
    Source: Abnar and Zuidema 2020, section 3.
    """
    tokens = attentions[0].shape[-1]
    side = int((tokens - 1) ** 0.5)
    prefix = tokens - side * side
    identity = torch.eye(tokens, dtype=torch.float32, device=attentions[0].device)
    flow = identity
    for attention in attentions:
        flow = (0.5 * attention.float().mean(dim=1) + 0.5 * identity) @ flow  # (B, tokens, tokens)
    rows = torch.stack([flow[:, row, prefix:] for row in _TOKEN_ROWS[head]]).mean(dim=0)  # (B, side * side)
    return (rows / rows.sum(dim=-1, keepdim=True)).reshape(-1, side, side)
