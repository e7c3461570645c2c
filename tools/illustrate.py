"""Figures of docs/how-it-works.md, drawn from a trained transformer and two freely licensed faces.

    python -m tools.illustrate RUN [--data KIND=ROOT] --out docs/images/how-it-works

RUN is a run or an artifact. It needs a distillation token for the figures of both tokens. Means over faces use the
validation split; individual faces are those of samples/photos.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import cv2
import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from mien.data.contract import Array, align, decode
from mien.data.errors import MienError
from mien.models.attention import (
    attention_distances,
    grid_side,
    learned_token_cosine,
    position_similarity,
    token_cosines,
    trace,
)
from mien.models.network import FaceNetwork
from mien.models.rollout import has_attention, rollout
from mien.training.arguments import kind_and_root
from mien.training.export import read_member
from mien.training.faces import read_faces
from mien.training.report.command import choose
from mien.training.report.figures import COLORS, GRAY, STYLE

PHOTOS: Final = Path(__file__).parents[1] / "samples" / "photos"
# landmarks found by YuNet: image-left eye, image-right eye, nose, image-left and image-right mouth corner
FACES: Final = {
    "astronaut.jpg": ((200.4, 101.8), (246.8, 102.6), (220.3, 124.4), (199.0, 142.4), (239.5, 143.5)),
    "grace_hopper.jpg": ((227.1, 193.3), (308.0, 195.4), (266.5, 240.0), (228.5, 267.9), (302.2, 269.6)),
}
DEIT_COSINES: Final = (0.06, 0.93)  # Touvron et al. 2021, section 4: as learned, and after the last layer
_BLUE, _ORANGE = COLORS[:2]
_STYLE: Final[Any] = STYLE | {"axes.grid": False, "legend.frameon": True, "savefig.dpi": 100}


class IllustrationError(MienError):
    """A run that cannot be drawn."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Input of the figures: a trained transformer, and the crops of a validation split for means."""

    network: FaceNetwork
    valid: Array  # (N, 112, 112, 3) uint8, RGB


def sample_faces() -> Array:
    """Crops of the sample photos' faces, (2, 112, 112, 3) uint8, RGB."""
    photos = {name: decode((PHOTOS / name).read_bytes()) for name in FACES}
    return np.stack([align(photos[name], np.array(points, np.float32)) for name, points in FACES.items()])


def patch_grid(subject: Subject) -> Figure:
    """A face as the network sees it: crop, patches, and sequence of patches."""
    network, crop = subject.network, sample_faces()[0]
    side = grid_side(network)
    with torch.no_grad():
        pixels = network.preprocess(torch.from_numpy(crop)[None])[0].permute(1, 2, 0).numpy()
    gray = (pixels - pixels.min()) / np.ptp(pixels)
    patch = gray.shape[0] // side
    drawn = Figure(figsize=(7.2, 3.3))
    whole, cut, row = drawn.subplot_mosaic("AB;CC", height_ratios=[3, 1]).values()
    _show(whole, crop, f"the crop: {crop.shape[0]} x {crop.shape[1]} pixels")
    parts = gray.reshape(side, patch, side, patch, -1).transpose(0, 2, 1, 3, 4)
    _show(cut, _spread(parts, gap=1), f"what the network sees: {side} x {side} patches of {patch} x {patch}")
    _show(row, _spread(parts.reshape(1, side * side, patch, patch, -1)[:, : 3 * side], gap=2), "")
    row.set_title(f"the first {3 * side} of {side * side} tokens, row by row", fontsize=9)
    return drawn


def _spread(parts: Array, *, gap: int) -> Array:
    """Arrange patches (R, C, P, P, channels) with white gaps."""
    rows, columns, patch = parts.shape[:3]
    step = patch + gap
    sheet = np.ones((rows * step - gap, columns * step - gap, 3))
    for row in range(rows):
        for column in range(columns):
            sheet[row * step : row * step + patch, column * step : column * step + patch] = parts[row, column]
    return sheet


def _sample(crops: Array, most: int) -> Array:
    """At most `most` random crops, the same for every run."""
    return np.asarray(crops[np.sort(np.random.default_rng(0).permutation(len(crops))[:most])])


def heat(crop: Array, relevance: Array) -> Array:
    """Blend a map (side, side) with a face (H, W, 3) uint8 RGB: dark at the map's minimum, bright at its maximum."""
    height, width = crop.shape[:2]
    scaled = (relevance - relevance.min()) / max(float(np.ptp(relevance)), 1e-12)
    enlarged = cv2.resize(scaled.astype(np.float32), (width, height), interpolation=cv2.INTER_CUBIC)
    colors = mpl.colormaps["inferno"](np.clip(enlarged, 0, 1))[..., :3]
    gray = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)[..., None] / 255.0
    return np.asarray(np.rint(255 * (0.45 * gray + 0.55 * colors)), np.uint8)


def _show(axes: Any, image: Array, title: str) -> None:
    axes.imshow(image, interpolation="nearest")
    axes.set_title(title)
    axes.axis("off")


def position(subject: Subject) -> Figure:
    """Cosine of each patch's position embedding to all others, on the patch grid. Source: ViT, figure 7."""
    similarity = cast(Tensor, position_similarity(subject.network))  # see `drawable`
    side = len(similarity)
    others = similarity.reshape(side**2, side**2)[~torch.eye(side**2, dtype=torch.bool)]
    largest = float(others.abs().max())  # without the diagonal, whose 1 would dominate the color scale
    drawn = Figure(figsize=(5.0, 4.4))
    grid = drawn.subplots(side, side)
    for row in range(side):
        for column in range(side):
            image = grid[row, column].imshow(
                similarity[row, column].numpy(), vmin=-largest, vmax=largest, cmap="RdBu_r"
            )
            grid[row, column].set(xticks=[], yticks=[])
            grid[row, column].spines[:].set_visible(False)
    drawn.colorbar(image, ax=grid, label="cosine", shrink=0.6)
    return drawn


def attention(subject: Subject) -> Figure:
    """Attention of the class token by head, for at most six evenly spaced layers."""
    crop = sample_faces()[0]
    layers = trace(subject.network, torch.from_numpy(crop)[None]).attention
    side = grid_side(subject.network)
    chosen = sorted({round(place) for place in np.linspace(0, len(layers) - 1, min(len(layers), 6))})
    heads = layers[0].shape[1]
    drawn = Figure(figsize=(1.1 * len(chosen) + 0.5, 1.15 * heads + 0.3))
    grid = drawn.subplots(heads, len(chosen), squeeze=False)
    for column, layer in enumerate(chosen):
        for head in range(heads):
            seen = layers[layer][0, head, 0, -side * side :].reshape(side, side).numpy()
            _show(grid[head, column], heat(crop, seen), _first(head, f"block {layer + 1}"))
            if column == 0:
                grid[head, column].text(-0.08, 0.5, f"head {head + 1}", rotation=90, va="center", ha="right",
                                        transform=grid[head, column].transAxes)  # fmt: skip
    return drawn


def distance(subject: Subject) -> Figure:
    """Mean attention distance of each head by layer, on validation faces. Source: ViT, figure 7."""
    chosen = _sample(subject.valid, 64)
    layers = trace(subject.network, torch.from_numpy(chosen)).attention
    patch_px = chosen.shape[1] / grid_side(subject.network)
    far = np.stack([attention_distances(layer, patch_px=patch_px).numpy() for layer in layers])  # (blocks, heads)
    drawn = Figure(figsize=(4.6, 2.9))
    axes = drawn.subplots()
    blocks = np.arange(1, len(far) + 1)
    for head in range(far.shape[1]):
        axes.plot(blocks, far[:, head], "o", color=_BLUE, alpha=0.7)
    axes.plot(blocks, far.mean(axis=1), color=_ORANGE, label="mean of the heads")
    count = layers[0].shape[-1]
    uniform = attention_distances(torch.full((1, 1, count, count), 1 / count), patch_px=patch_px)
    axes.axhline(float(uniform), color=GRAY, linestyle="--", label="uniform attention")
    axes.set(xlabel="block", ylabel="mean distance, pixels", xticks=blocks)
    axes.set_ylim(0, 1.15 * far.max())
    drawn.legend(frameon=False, loc="outside lower left", ncols=2)
    return drawn


def tokens(subject: Subject) -> Figure:
    """Cosine of class and distillation token by depth."""
    prefix = [
        trace(subject.network, torch.from_numpy(part)).prefix for part in np.array_split(_sample(subject.valid, 256), 8)
    ]
    after = np.concatenate([token_cosines(part).numpy() for part in prefix])
    learned = np.full((len(after), 1), learned_token_cosine(subject.network))
    values = np.concatenate([learned, after], axis=1)  # (N, blocks + 2): as learned, after each block, after the norm
    depth = np.arange(values.shape[1])
    low, high = np.percentile(values, [5, 95], axis=0)
    drawn = Figure(figsize=(4.6, 2.9))
    axes = drawn.subplots()
    axes.fill_between(depth, low, high, color=_BLUE, alpha=0.2, linewidth=0, label="middle 90 % of the faces")
    axes.plot(depth, values.mean(axis=0), "o-", color=_BLUE, label="mean")
    axes.plot([0, depth[-1]], DEIT_COSINES, "D", color=_ORANGE, label="DeiT on ImageNet")
    axes.set_xticks(depth, ["learned", *(str(block) for block in depth[1:-1]), "norm"])
    axes.set(xlabel="after block", ylabel="cosine")
    drawn.legend(frameon=False, loc="outside lower left", ncols=2)
    return drawn


def looks(subject: Subject) -> Figure:
    """Attention rollout of both tokens on both faces."""
    crops = sample_faces()
    layers = trace(subject.network, torch.from_numpy(crops)).attention
    maps = {"class token": rollout(layers, head="class"), "distillation token": rollout(layers, head="distillation")}
    drawn = Figure(figsize=(4.9, 3.4))
    grid = drawn.subplots(len(crops), 3)
    for row, crop in enumerate(crops):
        _show(
            grid[row, 0], cv2.cvtColor(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB), _first(row, "face")
        )
        for column, (name, seen) in enumerate(maps.items(), start=1):
            _show(grid[row, column], heat(crop, seen[row].numpy()), _first(row, name))
    return drawn


def _first(number: int, title: str) -> str:
    """The title for the first row or column only."""
    return title if number == 0 else ""


PICTURES: Final[dict[str, Callable[[Subject], Figure]]] = {
    "patches": patch_grid,
    "positions": position,
    "attention": attention,
    "distance": distance,
    "tokens": tokens,
    "looks": looks,
}


def drawable(subject: Subject) -> list[str]:
    """Names of the figures that can be drawn from this run."""
    left_out = set() if subject.network.backbone.distilled else {"tokens", "looks"}
    left_out |= set() if position_similarity(subject.network) is not None else {"positions"}
    return [name for name in PICTURES if name not in left_out]


def write(subject: Subject, out: Path) -> list[Path]:
    """Write all figures as PNG, in full color: a palette shows bands in plain areas, or noise if it is dithered."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name in drawable(subject):
        path = out / f"{name}.png"
        with mpl.rc_context(_STYLE):
            PICTURES[name](subject).savefig(path, metadata={"Software": None})
        with Image.open(path) as image:
            whole = image.convert("RGB")
        whole.save(path, optimize=True)
        written.append(path)
    return written


def read_subject(run: Path, *, data: tuple[str, Path] | None) -> Subject:
    """Load the input of the figures. Raises: MienError and its subclasses."""
    member = read_member(run)
    if not has_attention(member.network.backbone):
        raise IllustrationError(f"{run}: {member.model.name} is not a transformer with a class token")
    crops = read_faces(choose(member.valid, data=data, split=None, options={})).crops
    return Subject(network=member.network, valid=crops)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.illustrate", description="Draw docs/how-it-works.md.")
    parser.add_argument("run", type=Path, help="run or artifact folder of a transformer")
    help_ = "data for means (default: validation data of the recipe)"
    parser.add_argument("--data", type=kind_and_root, metavar="KIND=ROOT", help=help_)
    parser.add_argument("--out", type=Path, required=True, help="folder for the figures")
    options = parser.parse_args(arguments)
    try:
        written = write(read_subject(options.run, data=options.data), options.out)
    except MienError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(f"{path}  {path.stat().st_size / 1000:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
