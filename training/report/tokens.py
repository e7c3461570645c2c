"""Cosine between class token and distillation token, by layer."""

import numpy as np
import torch

from mien.data.contract import Array
from mien.models.attention import has_distillation_token, learned_token_cosine, token_cosines, trace
from mien.models.network import FaceNetwork
from mien.training.faces import FaceSet
from mien.training.report import plot
from mien.training.report.render import Section, side_by_side
from mien.training.report.results import RunResult

FACES = 512
DEIT = (0.06, 0.93)  # Touvron et al. 2021, section 4: as learned, and after the last layer


def cosines(network: FaceNetwork, crops: Array, *, batch: int = 32) -> Array:
    """Cosine between both tokens by face and depth, (N, blocks + 2): as learned, after each block, after the norm."""
    parts = [torch.from_numpy(np.array(crops[start : start + batch])) for start in range(0, len(crops), batch)]
    after = np.concatenate([token_cosines(trace(network, part).prefix).numpy() for part in parts])
    learned = np.full((len(after), 1), learned_token_cosine(network))
    return np.concatenate([learned, after], axis=1)


def sample(faces: int, *, most: int = FACES) -> Array:
    """Indices of at most `most` random faces, the same for every run."""
    return np.sort(np.random.default_rng(0).permutation(faces)[:most])


def section(result: RunResult, faces: FaceSet, *, key: str) -> Section | None:
    """Mean cosine and the 5th to 95th percentile; None for a network without a distillation token."""
    if not has_distillation_token(result.network):
        return None
    chosen = sample(len(faces))
    values = cosines(result.network, faces.crops[chosen])
    mean = values.mean(axis=0)
    low, high = np.percentile(values, [5, 95], axis=0)
    depth = np.arange(len(mean))
    with plot.style():
        drawn = plot.figure(4.6, 3.0)
        axes = drawn.subplots()
        axes.fill_between(depth, low, high, color=plot.SERIES[0], alpha=0.2, linewidth=0)
        axes.plot(depth, mean, marker="o", markersize=4, label="this run", **plot.series(0))
        axes.plot([0, depth[-1]], DEIT, "D", color=plot.SERIES[1], markersize=5, label="DeiT on ImageNet")
        axes.set_xticks(depth, ["learned", *(str(block) for block in depth[1:-1]), "norm"])
        axes.set(xlabel="after block", ylabel="cosine")
        axes.set_ylim(min(-0.1, float(low.min()) - 0.05), 1.05)
        drawn.legend(loc="outside lower left", ncols=2)
    label = (
        f"Cosine between class and distillation token: {mean[0]:.2f} as learned, {mean[-1]:.2f} after the last layer"
    )
    figure = plot.svg(drawn, name=f"{key}-cosine", label=label)
    mode = result.recipe.distillation.mode
    untrained = "" if mode.startswith("token-") else f" This run did not train the distillation token (mode {mode})."
    note = f"{label}; mean and middle 90 % of {len(chosen)} faces. DeiT reports 0.06 and 0.93.{untrained}"
    return Section("tokens", "Class and distillation token", note, side_by_side(figure))
