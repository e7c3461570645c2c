"""Fit of the reason `covered`: a small network on a coarse grid of the crop, and how often it is right.

    MIEN_DATA_DIR=... MIEN_MODELS_DIR=... python -m benchmarks.covered --json out/covered.json --write data/cover.npz

Covered faces are people with masks (`masks`), and faces of other photos with a drawn hand, object or scarf, or drawn
sunglasses. Other faces are those photos (`detector`, `expressions`) and FERPlus, some with drawn clear glasses. By the
SHA-256 of the photo's name, three fifths of the photos are for the fit, one fifth is for the limit, and one fifth is
measured. 5 minutes on one core.
"""

import hashlib
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.results import benchmark_parser, publish
from mien.app.inference.labeler import Labeler
from mien.app.settings import load_settings
from mien.data.contract import CROP_PX, TEMPLATE_PX, Array
from mien.data.quality import LIMITS, cover_features
from mien.data.readers.base import open_reader
from mien.models.manifest import artifact_dir
from mien.training.config import DATA_DIR_VARIABLE

PARTS: Final = ("fit", "limit", "test")
FALSE_ALARMS: Final = 0.008  # share of the other faces for the limit, of all sources together
ARCHIVES: Final = {
    "masks": "masks/masks.zip", "people": "detector/people.zip", "web": "expressions/expressions.zip",
}  # fmt: skip
FERPLUS_FACES: Final = 3000
HIDDEN: Final = 64
_EYES: Final = TEMPLATE_PX[:2]
_MOUTH_Y: Final = TEMPLATE_PX[3][1]
_COLOR: Final = ("people, yunet", "web, yunet")


@dataclass(frozen=True, slots=True)
class Faces:
    """Crops of one source, and the part that each belongs to."""

    covered: bool
    crops: Array
    parts: Array

    def of(self, part: str) -> Array:
        return self.crops[self.parts == part]


def part_of(name: str) -> str:
    """Part of a photo by its name."""
    return PARTS[max(0, int(hashlib.sha256(name.encode()).hexdigest(), 16) % 5 - 2)]


def photos_of(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Names and bytes of the photos in an archive."""
    with zipfile.ZipFile(archive) as packed:
        for member in sorted(packed.namelist()):
            if member.lower().endswith((".jpg", ".jpeg", ".png")):
                yield member.rpartition("/")[2], packed.read(member)


def read_sources(root: Path) -> dict[str, Faces]:
    """Faces of all sources; those of masks by both detectors."""
    sources = {}
    for name, archive in ARCHIVES.items():
        for detector in ("builtin", "yunet") if name == "masks" else ("yunet",):
            labeler = Labeler.open(
                load_settings(model=artifact_dir("fast"), device="cpu", threads=1, detector=detector)
            )
            crops, parts = list[Array](), list[str]()
            for file, data in photos_of(root / archive):
                prepared = labeler.prepare(data)
                crops.extend(prepared.crops)
                parts += [part_of(file)] * len(prepared.crops)
            sources[f"{name}, {detector}"] = Faces(name == "masks", np.stack(crops), np.array(parts))
    reader, draw = open_reader("ferplus", root / "ferplus"), np.random.default_rng(0)
    samples = reader.labeled("train")
    chosen = [samples[index] for index in sorted(draw.permutation(len(samples))[:FERPLUS_FACES])]
    parts = [part_of(sample.key) for sample in chosen]
    sources["ferplus"] = Faces(False, np.stack([reader.crop(sample) for sample in chosen]), np.array(parts))
    return sources


def blend(crop: Array, mask: Array, fill: Any, draw: np.random.Generator) -> Array:
    """Lay a fill over a crop where the mask (112, 112) is 1, with soft borders."""
    soft = cv2.GaussianBlur(mask, (0, 0), draw.uniform(0.4, 1.5))[..., None]
    blended: Array = np.clip(crop * (1 - soft) + fill * soft, 0, 255).astype(np.uint8)
    return blended


def texture(draw: np.random.Generator, low: int, high: int) -> Array:
    """Smooth noise (112, 112, 1) of deviation 1."""
    noise = draw.normal(0, 1, (int(draw.integers(low, high)),) * 2).astype(np.float32)
    return cv2.resize(noise, (CROP_PX, CROP_PX), interpolation=cv2.INTER_CUBIC)[..., None]


def draw_glasses(crop: Array, draw: np.random.Generator, *, clear: bool = False) -> Array:
    """Draw sunglasses, or the frames of clear glasses."""
    mask, y = np.zeros((CROP_PX, CROP_PX), np.float32), _EYES[0][1] + draw.normal(0, 2)
    width = int(draw.integers(1, 3)) if clear else -1
    for x, _ in _EYES:
        if clear or draw.random() < 0.5:
            axes = draw.uniform(26, 38), draw.uniform(18, 32)
            cv2.ellipse(mask, ((x + draw.normal(0, 1), y + 2), axes, draw.normal(0, 5)), 1, width)
        else:
            half = draw.uniform(13, 19), draw.uniform(8, 15)
            corners = (int(x - half[0]), int(y - half[1] + 3)), (int(x + half[0]), int(y + half[1]))
            cv2.rectangle(mask, *corners, 1, -1)
    ends = (50, 62) if clear else (0, CROP_PX - 1)
    cv2.line(mask, (ends[0], int(y) - 2), (ends[1], int(y) - 2), 1, int(draw.integers(1, 4)))
    if clear:
        return blend(crop, mask, draw.uniform(0, 120, 3), draw)
    shine = draw.uniform(0, 14) * texture(draw, 2, 8)
    return blend(crop, mask * draw.uniform(0.8, 1), draw.uniform(5, 70) + draw.normal(0, 6, 3) + shine, draw)


def draw_hand(crop: Array, draw: np.random.Generator, skin: Array) -> Array:
    """Draw fingers of this face's color over the mouth or the eyes, with the texture of another cheek."""
    mask, gaps = np.zeros((2, CROP_PX, CROP_PX), np.float32)
    center = np.array([56 + draw.normal(0, 9), (_MOUTH_Y if draw.random() < 0.7 else _EYES[0][1]) + draw.normal(0, 5)])
    angle, fingers = draw.uniform(0, 2 * math.pi), int(draw.integers(2, 5))
    along, across = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    width, length = draw.uniform(7, 13), draw.uniform(24, 50)
    for number in range(fingers):
        middle = center + (number - (fingers - 1) / 2) * width * draw.uniform(0.95, 1.15) * across
        start, end = middle - length / 2 * along, middle + length * draw.uniform(0.8, 1.1) * along
        cv2.line(mask, start.astype(int).tolist(), end.astype(int).tolist(), 1, max(4, int(width)))
        side = width / 2 * across
        cv2.line(gaps, (start + side).astype(int).tolist(), (end + side).astype(int).tolist(), 1, 1)
    if draw.random() < 0.7:
        palm = (width * fingers * 1.2, width * fingers * draw.uniform(0.9, 1.4))
        cv2.ellipse(mask, ((center - length * 0.8 * along).tolist(), palm, math.degrees(angle)), 1, -1)
    cheek = cv2.resize(skin, (CROP_PX, CROP_PX), interpolation=cv2.INTER_CUBIC).astype(np.float32)
    color = np.median(crop[55:80, 30:82].reshape(-1, 3), 0) * draw.uniform(0.7, 1.2)
    shadows = cv2.GaussianBlur(gaps, (0, 0), draw.uniform(0.6, 1.5))[..., None] * draw.uniform(15, 80)
    return blend(crop, mask, (cheek - cheek.mean((0, 1))) * draw.uniform(0.5, 1.2) + color - shadows, draw)


def draw_scarf(crop: Array, draw: np.random.Generator) -> Array:
    """Draw cloth with folds over mouth and chin."""
    mask, top = np.zeros((CROP_PX, CROP_PX), np.float32), draw.uniform(62, 78)
    edge = [(-4, top + draw.uniform(-8, 8)), (56, top + draw.uniform(-4, 6)), (116, top + draw.uniform(-8, 8))]
    cv2.fillPoly(mask, [np.array([*edge, (116, 116), (-4, 116)]).astype(np.int32)], 1)
    color = draw.uniform(10, 240, 3) if draw.random() < 0.7 else np.full(3, draw.uniform(10, 240))
    rows = np.indices((CROP_PX, CROP_PX))[0][..., None]
    folds = np.sin(rows / draw.uniform(2, 6) + texture(draw, 2, 5) * draw.uniform(0.5, 2)) * draw.uniform(3, 25)
    return blend(crop, mask, color + folds + draw.uniform(0, 30) * texture(draw, 4, 40), draw)


def draw_object(crop: Array, draw: np.random.Generator) -> Array:
    """Draw an ellipse or a rectangle over the eyes or the mouth."""
    mask, eyes = np.zeros((CROP_PX, CROP_PX), np.float32), draw.random() < 0.5
    center = 56 + draw.normal(0, 4), (_EYES[0][1] if eyes else _MOUTH_Y) + draw.normal(0, 3)
    box = center, (2 * draw.uniform(34 if eyes else 26, 60), 2 * draw.uniform(9, 20)), float(draw.normal(0, 8))
    if draw.random() < 0.5:
        cv2.ellipse(mask, box, 1, -1)
    else:
        cv2.fillPoly(mask, [cv2.boxPoints(box).astype(np.int32)], 1)
    rough = draw.choice([0, draw.uniform(10, 60)]) * texture(draw, 2, 24)
    return blend(crop, mask, draw.uniform(0, 255, 3 if draw.random() < 0.5 else 1) + rough, draw)


def degrade(crop: Array, draw: np.random.Generator) -> Array:
    """Half of the crops blurred, small or dark, a quarter gray."""
    kind = int(draw.integers(6))
    if kind == 0:
        crop = cv2.GaussianBlur(crop, (0, 0), draw.uniform(0.5, 3))
    elif kind == 1:
        px = int(draw.uniform(14, 48))
        small = cv2.resize(crop, (px, px), interpolation=cv2.INTER_AREA)
        crop = cv2.resize(small, (CROP_PX, CROP_PX), interpolation=cv2.INTER_LINEAR)
    elif kind == 2:
        crop = (crop * min(1, draw.uniform(0.03, 0.3) / (crop.mean() / 255 + 1e-6))).astype(np.uint8)
    if draw.random() < 0.25:
        crop = cv2.cvtColor(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    return crop


def drawings(donors: Array) -> dict[str, Callable[[Array, np.random.Generator], Array]]:
    """What is drawn over faces; hands have the skin of one of the donors (N, 112, 112, 3)."""
    return {
        "sunglasses": draw_glasses,
        "hand": lambda crop, draw: draw_hand(crop, draw, donors[draw.integers(len(donors)), 62:78, 28:48]),
        "scarf": draw_scarf,
        "object": draw_object,
    }


def training_set(sources: dict[str, Faces]) -> tuple[Array, Array]:
    """Features (N, F) and targets (N,) of the faces for the fit and their mirror images."""
    draw, features, targets = np.random.default_rng(7), list[Array](), list[float]()
    covers = drawings(np.concatenate([faces.of("fit") for name, faces in sources.items() if name in _COLOR]))

    def add(crop: Array, *, covered: bool) -> None:
        features.append(cover_features(crop))
        targets.append(float(covered))

    for name, faces in sources.items():
        for crop in faces.of("fit"):
            for side in (crop, np.ascontiguousarray(crop[:, ::-1])):
                add(side, covered=faces.covered)
                changed = degrade(side, draw)
                if not faces.covered and draw.random() < 0.25:
                    changed = draw_glasses(changed, draw, clear=True)
                add(changed, covered=faces.covered)
                if not faces.covered:
                    count = 3 if name in _COLOR else 1
                    for kind in draw.choice(list(covers), count, replace=False, p=(0.25, 0.4, 0.2, 0.15)):
                        add(degrade(covers[kind](side, draw), draw), covered=True)
    return np.stack(features), np.array(targets, np.float32)


def fit(features: Array, targets: Array) -> dict[str, Array]:
    """Weights of the two layers, with the normalization of the features in the first one."""
    torch.manual_seed(0)
    mean, deviation = features.mean(0), features.std(0) + 1e-3
    x, y = torch.tensor((features - mean) / deviation), torch.tensor(targets)
    network = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], HIDDEN), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(HIDDEN, 1)
    )
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.3)
    epochs, batch = 15, 128
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=epochs * math.ceil(len(x) / batch))
    for _ in range(epochs):
        for index in torch.randperm(len(x)).split(batch):
            inputs = x[index] + 0.3 * torch.randn_like(x[index])
            weight = torch.where(y[index] > 0, 1.0, 2.0)  # A false alarm is worse than a missed one.
            loss = binary_cross_entropy_with_logits(network(inputs)[:, 0], y[index], weight=weight)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
    first, second = (layer.weight.detach().numpy() for layer in (network[0], network[3]))
    biases = network[0].bias.detach().numpy() - first @ (mean / deviation)
    weights = {"hidden": (first / deviation).T, "hidden_bias": biases, "output": second[0]}
    return {name: np.asarray(values, np.float16) for name, values in weights.items()} | {
        "output_bias": np.float16(network[3].bias.item())
    }


def logits(features: Array, weights: dict[str, Array]) -> Array:
    """Log odds (N,) that faces are covered."""
    hidden, bias, output, last = (values.astype(np.float32) for values in weights.values())
    scores: Array = np.maximum(features @ hidden + bias, 0) @ output + last
    return scores


def main() -> None:
    """Fit, measure and write."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--write", type=Path, help="file of the weights, such as data/cover.npz")
    given = parser.parse_args()
    torch.set_num_threads(1)
    sources = read_sources(Path(os.environ[DATA_DIR_VARIABLE]))
    weights = fit(*training_set(sources))

    def of(crops: Array) -> Array:
        return logits(np.stack([cover_features(crop) for crop in crops]), weights)

    others = np.concatenate([of(faces.of("limit")) for faces in sources.values() if not faces.covered])
    shift = float(np.quantile(others, 1 - FALSE_ALARMS)) - LIMITS["covered"]
    weights["output_bias"] = np.float16(weights["output_bias"] - shift)
    tested = {name: of(faces.of("test")) for name, faces in sources.items()}
    draw, free = np.random.default_rng(1), np.concatenate([sources[name].of("test") for name in _COLOR])
    for kind, cover in (drawings(free) | {"clear glasses": partial(draw_glasses, clear=True)}).items():
        tested[f"drawn: {kind}"] = of(np.stack([cover(crop, draw) for crop in free]))
    found = {
        name: {"faces": len(scores), "covered": float(np.mean(scores > LIMITS["covered"]))}
        for name, scores in tested.items()
    }
    if given.write:
        np.savez_compressed(given.write, **weights)
    publish({"found": found}, given.json)


if __name__ == "__main__":
    main()
