"""ONNX graphs of a release: of one network, and photo graphs.

The graphs of crops are compared with torch, those of photos with the graphs of crops.
"""

import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

from mien.data.contract import CROP_PX, Array, align, decode
from mien.data.errors import MienError
from mien.data.quality import measure, soften, softmax
from mien.models.manifest import (
    CROPS,
    LOGITS,
    RELEVANCE,
    GraphFile,
    Manifest,
    Precision,
    default_detector_dir,
    load_detector,
    sha256_of,
)
from mien.models.network import FaceNetwork, Head, Preprocess, heads_of, select_head
from mien.models.rollout import has_attention, recorded_attention, rollout
from mien.training.evaluate import open_graph, open_released
from mien.training.photo_graph import photo_graph

logger = logging.getLogger("mien.training")

_OPSET: Final = 20
MAX_FP32_DIFFERENCE: Final = 1e-4  # largest difference of a probability
MIN_FP16_AGREEMENT: Final = 0.999  # share of faces with the same top label
_TIE: Final = 0.01  # labels are the same if their fp32 probabilities differ by less

PHOTO_GRAPHS: Final[dict[Precision, str]] = {"fp32": "photo.onnx", "int8": "photo.int8.onnx"}
MIN_PHOTO_AGREEMENT: Final = 0.98  # share of faces with the label of the crop's graph
# Mean difference of probabilities; int8 rounds nearly equal crops apart.
MAX_PHOTO_DIFFERENCE: Final = {"fp32": 0.01, "int8": 0.02}
_CANVASES: Final = 16
_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".webp")


class ExportError(MienError):
    """An exported graph whose output differs from that of the network."""


class _OneConvolution(nn.Module):
    """Preprocessing for smaller luminance crops: weights of colors and means of pixels in one kernel."""

    kernel: Tensor

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        self.normalize = preprocess.normalize
        self.side = CROP_PX // preprocess.img_size
        weights = preprocess.luminance.view(1, 3, 1, 1) / (255 * self.side**2)
        self.register_buffer("kernel", weights.repeat(1, 1, self.side, self.side), persistent=False)

    def forward(self, crops: Tensor) -> Tensor:
        pixels = crops.permute(0, 3, 1, 2).to(torch.float32)
        return self.normalize(functional.conv2d(pixels, self.kernel, stride=self.side))


class ReleasedNetwork(nn.Module):
    """Module for export: uint8 crops to float32 logits of one head, with the backbone in one precision.

    A transformer also returns its attention rollout, at almost no cost.
    """

    def __init__(self, network: FaceNetwork, head: Head) -> None:
        super().__init__()
        # stays in fp32: a mean over 12,544 pixels is inaccurate in fp16
        self.preprocess: nn.Module = network.preprocess
        if network.preprocess.color == "luminance" and CROP_PX % network.preprocess.img_size == 0:
            self.preprocess = _OneConvolution(network.preprocess)
        self.backbone = network.backbone
        self.head: Head = head
        self.explains = has_attention(network.backbone)

    def forward(self, crops: Tensor) -> tuple[Tensor, ...]:  # (N, 112, 112, 3) uint8
        pixels = self.preprocess(crops).to(next(self.backbone.parameters()).dtype)
        if self.explains:
            with recorded_attention(self.backbone) as attentions:
                logits = select_head(heads_of(self.backbone, pixels), self.head)  # (N, 7) float32
            return logits, rollout(attentions, head=self.head)  # (N, side, side) float32
        return (select_head(heads_of(self.backbone, pixels), self.head),)


def write_graph(released: ReleasedNetwork, path: Path) -> None:
    """Export a graph with a dynamic batch dimension, without traces of this machine, and check it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        program: Any = torch.onnx.export(
            released.eval().requires_grad_(False),  # A graph for gradients takes a quarter longer.
            (torch.zeros(2, CROP_PX, CROP_PX, 3, dtype=torch.uint8),),
            input_names=[CROPS],
            output_names=[LOGITS, RELEVANCE] if released.explains else [LOGITS],
            opset_version=_OPSET,
            dynamic_shapes=({0: torch.export.Dim("faces", min=1, max=4096)},),
            dynamo=True,
            verbose=False,
        )
    model: onnx.ModelProto = program.model_proto
    graph = model.graph
    for part in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
        del part.metadata_props[:]  # stack traces, with local paths
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def check_fp32(expected_logits: Array, found_logits: Array) -> float:
    """Maximum difference of the probabilities of (N, 7) logits. Raises: ExportError, if it is above the limit."""
    difference = float(np.abs(softmax(expected_logits) - softmax(found_logits)).max())
    if not difference <= MAX_FP32_DIFFERENCE:
        raise ExportError(f"fp32 graph: probabilities differ from torch by up to {difference:.2e}, the limit is 1e-4")
    return difference


def check_fp16(fp32_logits: Array, fp16_logits: Array) -> float:
    """Share of equal labels, ties included, for (N, 7) logits. Raises: ExportError, if it is below the limit."""
    probabilities = softmax(fp32_logits)
    chosen = np.take_along_axis(probabilities, fp16_logits.argmax(axis=1, keepdims=True), axis=1)[:, 0]
    same = float((probabilities.max(axis=1) - chosen < _TIE).mean())
    if same < MIN_FP16_AGREEMENT:
        raise ExportError(f"fp16 graph: {100 * same:.2f} % of the labels are equal, expected at least 99.9 %")
    return same


def tinted(crops: Array) -> Array:
    """Tint gray crops, so that a check also covers the conversion from RGB to luminance."""
    tint = np.random.default_rng(0).uniform(0.4, 1.0, (len(crops), 1, 1, 3))
    return np.clip(crops * tint, 0, 255).astype(np.uint8)


def write_photo_graphs(folder: Path, manifest: Manifest, photos: Iterable[Array]) -> Manifest:
    """Write a photo graph for each precision that runs everywhere, and compare it on photos.

    Args:
        manifest: of the artifact in `folder`, with its calibration, which becomes part of the graphs.
        photos: (H, W, 3) uint8 RGB each; without a face in them, nothing is compared, and a warning says so.
    Returns: the manifest with the new files.
    Raises: ExportError, if a graph differs from the artifact's graph of the crop; ArtifactError, of the detector.
    """
    found_by, photos, written = load_detector(default_detector_dir()), list(photos), {}
    detector = onnx.load(default_detector_dir() / found_by.graph.file)
    for precision in (of for of in PHOTO_GRAPHS if of in manifest.graphs):
        name, classifier = PHOTO_GRAPHS[precision], onnx.load(folder / manifest.graph(precision).file)
        model = photo_graph(manifest, classifier, detector, score_threshold=found_by.score_threshold)
        onnx.save(model, folder / name)
        faces, difference = compare(folder, manifest, precision, photos)
        level = logging.INFO if faces else logging.WARNING
        logger.log(level, "%s: probabilities of %d faces differ by %.4f in the mean", name, faces, difference)
        written[precision] = GraphFile(file=name, sha256=sha256_of(folder / name))
    return manifest.model_copy(update={"photo_graphs": written})


def compare(folder: Path, manifest: Manifest, precision: Precision, photos: Sequence[Array]) -> tuple[int, float]:
    """Compare a photo graph with alignment, classifier and calibration in Python, at the landmarks that it found.

    Returns: number of faces, and the mean difference of their probabilities.
    Raises: ExportError.
    """
    session, model = open_graph(folder / PHOTO_GRAPHS[precision]), open_released(folder, manifest, precision)
    actual, expected = list[Array](), list[Array]()
    for photo in photos:
        landmarks, found = session.run(["landmarks", "probabilities"], {"photo": photo})
        if not len(found):
            continue
        crops = np.stack([align(photo, points) for points in landmarks])
        calibrated = manifest.probabilities(model.logits(crops), "balanced")
        seen = [measure(crop, points) for crop, points in zip(crops, landmarks, strict=True)]
        actual += list(found)
        expected += [soften(row, quality) for row, quality in zip(calibrated, seen, strict=True)]
    if not actual:
        return 0, 0.0
    rows, reference = np.stack(actual), np.stack(expected)
    same = float((rows.argmax(axis=1) == reference.argmax(axis=1)).mean())
    difference = float(np.abs(rows - reference).mean())
    limit = MAX_PHOTO_DIFFERENCE[precision]
    if not (same >= MIN_PHOTO_AGREEMENT and difference <= limit):
        raise ExportError(
            f"{PHOTO_GRAPHS[precision]}: of {len(rows)} faces, {100 * same:.1f} % have the label of the {precision} "
            f"graph, expected {MIN_PHOTO_AGREEMENT:.0%}; probabilities differ by {difference:.4f}, the limit is {limit}"
        )
    return len(rows), difference


def canvases(crops: Array) -> Iterator[Array]:
    """Photos of six faces each, from aligned crops (N, 112, 112, 3) uint8 RGB: (480, 660, 3) uint8 RGB."""
    side = CROP_PX * 3 // 2
    for start in range(0, min(len(crops), 6 * _CANVASES), 6):
        canvas = np.full((480, 660, 3), 128, np.uint8)
        for place, crop in enumerate(crops[start : start + 6]):
            top, left = 240 * (place // 3) + 36, 220 * (place % 3) + 26
            canvas[top : top + side, left : left + side] = cv2.resize(np.asarray(crop), (side, side))
        yield canvas


def photos_in(folder: Path) -> Iterator[Array]:
    """Upright photos of a folder. Raises: ExportError, if there is none; DecodeError."""
    paths = [path for path in sorted(folder.glob("*")) if path.suffix.lower() in _SUFFIXES]
    if not paths:
        raise ExportError(f"{folder}: no photos ({', '.join(_SUFFIXES)})")
    return (decode(path.read_bytes()) for path in paths)
