"""The pictures of docs/how-it-works.md, drawn from a trained transformer and two faces that are free to show.

    python -m training.illustrate RUN [--data KIND=ROOT] [--beside RUN] --out docs/images/how-it-works

RUN needs a distillation token for the pictures of both tokens. Means over faces come from the validation split; the
faces that are shown are those of samples/photos. `--beside` is a run of the same recipe without distillation, for the
curves.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from data.contract import Array, align, decode
from data.tree import DatasetError
from models.attention import (
    attention_distances,
    grid_side,
    has_class_token,
    has_distillation_token,
    position_similarity,
    trace,
)
from models.network import FaceNetwork
from models.rollout import rollout
from training.checkpoint import CheckpointError
from training.config import RecipeError
from training.report.__main__ import choose
from training.report.faces import read_faces
from training.report.history import History, read_history
from training.report.plot import heat
from training.report.tokens import DEIT, cosines, sample
from training.run import RunError, load_best, read_run

PHOTOS: Final = Path(__file__).parents[1] / "samples" / "photos"
# landmarks as YuNet finds them; image-left eye, image-right eye, nose, image-left and image-right mouth corner
FACES: Final = {
    "astronaut.jpg": ((200.4, 101.8), (246.8, 102.6), (220.3, 124.4), (199.0, 142.4), (239.5, 143.5)),
    "grace_hopper.jpg": ((227.1, 193.3), (308.0, 195.4), (266.5, 240.0), (228.5, 267.9), (302.2, 269.6)),
}
MAX_BYTES: Final = 150_000
_BLUE, _ORANGE, _GRAY = "#0067a5", "#c4510b", "#5a616b"
_STYLE: Final[Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 100,
    "text.parse_math": False,
}


class IllustrationError(RuntimeError):
    """A run that cannot be drawn, or a picture that came out too large."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is drawn: a trained transformer, and the crops of a validation split for the means."""

    network: FaceNetwork
    valid: Array  # (N, 112, 112, 3) uint8, RGB
    history: History
    beside: History | None
    name: str
    beside_name: str


def sample_faces() -> Array:
    """Crops of the sample photos' faces, (2, 112, 112, 3) uint8, RGB."""
    photos = {name: decode((PHOTOS / name).read_bytes()) for name in FACES}
    return np.stack([align(photos[name], np.array(points, np.float32)) for name, points in FACES.items()])


def patch_grid(subject: Subject) -> Figure:
    """A face as the network sees it: whole, cut, and as the sequence of its patches."""
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
    """Lay patches (R, C, P, P, channels) out with white between them."""
    rows, columns, patch = parts.shape[:3]
    step = patch + gap
    sheet = np.ones((rows * step - gap, columns * step - gap, 3))
    for row in range(rows):
        for column in range(columns):
            sheet[row * step : row * step + patch, column * step : column * step + patch] = parts[row, column]
    return sheet


def _show(axes: Any, image: Array, title: str) -> None:
    axes.imshow(image, interpolation="nearest")
    axes.set_title(title)
    axes.axis("off")


def position(subject: Subject) -> Figure:
    """Cosine of each patch's position embedding to all others, laid out as the patches lie. Source: ViT, figure 7."""
    similarity = position_similarity(subject.network)
    if similarity is None:
        raise IllustrationError(f"{subject.name} has no position embedding to draw")
    side = len(similarity)
    others = similarity.reshape(side**2, side**2)[~torch.eye(side**2, dtype=torch.bool)]
    largest = float(others.abs().max())  # a patch and itself, 1, would leave the rest pale
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
    """What the class token attends to in a face, by layer and head."""
    crop = sample_faces()[0]
    layers = trace(subject.network, torch.from_numpy(crop)[None]).attention
    side = grid_side(subject.network)
    chosen = _spaced(len(layers), most=6)
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


def _spaced(count: int, *, most: int) -> list[int]:
    """At most `most` of `count` indices, evenly spaced, with the first and the last."""
    return sorted({round(place) for place in np.linspace(0, count - 1, min(count, most))})


def distance(subject: Subject) -> Figure:
    """How far each head looks, layer by layer, over validation faces. Source: ViT, figure 7."""
    chosen = subject.valid[sample(len(subject.valid), most=64)]
    layers = trace(subject.network, torch.from_numpy(chosen)).attention
    patch_px = chosen.shape[1] / grid_side(subject.network)
    far = np.stack([attention_distances(layer, patch_px=patch_px).numpy() for layer in layers])  # (blocks, heads)
    drawn = Figure(figsize=(4.6, 2.9))
    axes = drawn.subplots()
    blocks = np.arange(1, len(far) + 1)
    for head in range(far.shape[1]):
        axes.plot(blocks, far[:, head], "o", color=_BLUE, alpha=0.7)
    axes.plot(blocks, far.mean(axis=1), color=_ORANGE, label="mean of the heads")
    axes.axhline(
        _blind_distance(len(layers[0][0, 0]), patch_px), color=_GRAY, linestyle="--", label="looking everywhere"
    )
    axes.set(xlabel="block", ylabel="mean distance, pixels of the crop", xticks=blocks)
    axes.set_ylim(0, 1.15 * far.max())
    axes.legend(frameon=False)
    return drawn


def _blind_distance(tokens: int, patch_px: float) -> float:
    """Distance of a head that attends to every token alike."""
    return float(attention_distances(torch.full((1, 1, tokens, tokens), 1 / tokens), patch_px=patch_px))


def tokens(subject: Subject) -> Figure:
    """Cosine of class and distillation token by depth."""
    values = cosines(subject.network, subject.valid[sample(len(subject.valid), most=256)])
    depth = np.arange(values.shape[1])
    low, high = np.percentile(values, [5, 95], axis=0)
    drawn = Figure(figsize=(4.6, 2.9))
    axes = drawn.subplots()
    axes.fill_between(depth, low, high, color=_BLUE, alpha=0.2, linewidth=0, label="middle 90 % of the faces")
    axes.plot(depth, values.mean(axis=0), "o-", color=_BLUE, label="mean")
    axes.plot([0, depth[-1]], DEIT, "D", color=_ORANGE, label="DeiT on ImageNet")
    axes.set_xticks(depth, ["learned", *(str(block) for block in depth[1:-1]), "norm"])
    axes.set(xlabel="after block", ylabel="cosine")
    axes.legend(frameon=False)
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
    """The title of the first row or column; the others go without."""
    return title if number == 0 else ""


def curves(subject: Subject) -> Figure:
    """Validation accuracy with a teacher and without."""
    if subject.beside is None:
        raise IllustrationError("the curves need a second run: --beside RUN")
    drawn = Figure(figsize=(6.8, 2.8))
    for axes, what, title in zip(
        drawn.subplots(1, 2), ("accuracy", "mean_class_accuracy"), ("accuracy", "mean class accuracy"), strict=True
    ):
        lines = ((subject.beside, subject.beside_name, _GRAY, "--"), (subject.history, subject.name, _BLUE, "-"))
        for history, name, colour, dash in lines:
            axes.plot(history.epochs, 100 * getattr(history, what), dash, marker="o", color=colour, label=name)
        axes.set(xlabel="epoch", ylabel="validation, %", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return drawn


PICTURES: Final[dict[str, Callable[[Subject], Figure]]] = {
    "patches": patch_grid,
    "positions": position,
    "attention": attention,
    "distance": distance,
    "tokens": tokens,
    "looks": looks,
    "curves": curves,
}


def drawable(subject: Subject) -> list[str]:
    """Names of the pictures that this run can give."""
    left_out = set() if has_distillation_token(subject.network) else {"tokens", "looks"}
    left_out |= set() if subject.beside is not None else {"curves"}
    left_out |= set() if position_similarity(subject.network) is not None else {"positions"}
    return [name for name in PICTURES if name not in left_out]


def write(subject: Subject, out: Path) -> list[Path]:
    """Write every picture that can be drawn as PNG. Raises: IllustrationError, when one is larger than 150 KB."""
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name in drawable(subject):
        path = out / f"{name}.png"
        with mpl.rc_context(_STYLE):
            PICTURES[name](subject).savefig(path, metadata={"Software": None})
        _compress(path)
        written.append(path)
    return written


def _compress(path: Path) -> None:
    """Store a picture as small as PNG allows; only one that is then too large gets a palette of 256 colours."""
    with Image.open(path) as image:
        whole = image.convert("RGB")
    whole.save(path, optimize=True)
    if path.stat().st_size > MAX_BYTES:
        whole.quantize(palette=whole.quantize(256), dither=Image.Dither.FLOYDSTEINBERG).save(path, optimize=True)
    if path.stat().st_size > MAX_BYTES:
        raise IllustrationError(f"{path}: {path.stat().st_size:,} bytes, {MAX_BYTES:,} are allowed in a document")


def read_subject(run: Path, *, beside: Path | None, data: str | None) -> Subject:
    """Load what is drawn. Raises: IllustrationError, RunError, CheckpointError, RecipeError, DatasetError."""
    recipe = read_run(run)
    network, _ = load_best(run)
    if not has_class_token(network):
        raise IllustrationError(f"{run}: not a transformer with a class token, but {recipe.model.name}")
    source, root = choose(recipe, data=data, split=None, options={})
    other = None if beside is None else read_run(beside)
    return Subject(
        network=network,
        valid=read_faces(source.kind, root, source.split, source.options).crops,
        history=read_history(run, batch_size=recipe.batch_size),
        beside=None if beside is None or other is None else read_history(beside, batch_size=other.batch_size),
        name=f"distillation: {recipe.distillation.mode}",
        beside_name="" if other is None else f"distillation: {other.distillation.mode}",
    )


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.illustrate", description="Draw docs/how-it-works.md.")
    parser.add_argument("run", type=Path, help="run folder of a transformer")
    parser.add_argument("--data", metavar="KIND=ROOT", help="for means over faces (default: the recipe's validation)")
    parser.add_argument("--beside", type=Path, metavar="RUN", help="a run without distillation, for the curves")
    parser.add_argument("--out", type=Path, required=True, help="folder of the pictures")
    options = parser.parse_args(arguments)
    try:
        written = write(read_subject(options.run, beside=options.beside, data=options.data), options.out)
    except (IllustrationError, RunError, CheckpointError, RecipeError, DatasetError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in written:
        print(f"{path}  {path.stat().st_size / 1000:.0f} KB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
