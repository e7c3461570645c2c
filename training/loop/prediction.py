"""Logits of a network for evaluation."""

from typing import Final

import numpy as np
import torch
from torch import nn

from mien.data.contract import Array
from mien.models.backbones import Heads
from mien.models.network import Head, select_head
from mien.training.loop.machine import Machine

_CPU: Final = Machine(torch.device("cpu"), torch.autocast("cpu", enabled=False))
_BATCH: Final = 256


def predict(network: nn.Module, crops: Array, *, heads: tuple[Head, ...], machine: Machine = _CPU) -> dict[Head, Array]:
    """Logits of the heads that a network has of `heads`, (N, 7) each; leaves the network in eval mode.

    Default: fp32 on the CPU.
    """
    network.eval()
    logits: dict[Head, list[Array]] = {}
    for start in range(0, len(crops), _BATCH):
        pixels = torch.from_numpy(np.array(crops[start : start + _BATCH])).to(machine.device)
        with torch.no_grad(), machine.autocast:
            output: Heads = network(pixels)
        for name in heads if output.distillation_logits is not None else ("class",):
            logits.setdefault(name, []).append(select_head(output, name).cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in logits.items()}
