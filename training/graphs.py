"""ONNX graphs of a release: one network, or an ensemble over each face and its mirror image."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import numpy as np
import onnx
import torch
from torch import Tensor, nn
from torch.nn import functional

from mien.data.contract import CROP_PX, Array
from mien.data.errors import MienError
from mien.data.quality import softmax
from mien.models.network import FaceNetwork, Head, Preprocess, heads_of, select_head
from mien.models.rollout import has_attention, recorded_attention, rollout

OPSET: Final = 20
MAX_FP32_DIFFERENCE: Final = 1e-4  # largest difference of a probability
MIN_FP16_AGREEMENT: Final = 0.999  # share of faces with the same top label
_TIE: Final = 0.01  # labels are the same if their fp32 probabilities differ by less


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


class ReleasedEnsemble(nn.Module):
    """Log of the mean calibrated probability of several networks, also over the mirror image if `mirrored`.

    The relevance is that of the first network, for the original face.
    """

    def __init__(
        self, members: Sequence[ReleasedNetwork], temperatures: Sequence[float], *, mirrored: bool = True
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.temperatures = tuple(temperatures)
        self.mirrored = mirrored
        self.explains = members[0].explains

    def forward(self, crops: Tensor) -> tuple[Tensor, ...]:  # (N, 112, 112, 3) uint8
        faces = crops.shape[0]
        views = torch.cat([crops, crops.flip(2)]) if self.mirrored else crops  # (2N, 112, 112, 3)
        outputs = [cast(tuple[Tensor, ...], member(views)) for member in self.members]
        scaled = [output[0] / temperature for output, temperature in zip(outputs, self.temperatures, strict=True)]
        probabilities = torch.stack(scaled).softmax(dim=-1).mean(dim=0)  # (2N, 7)
        if self.mirrored:
            probabilities = (probabilities[:faces] + probabilities[faces:]) / 2
        logits = probabilities.clamp_min(1e-12).log()
        return (logits, outputs[0][1][:faces]) if self.explains else (logits,)


Released = ReleasedNetwork | ReleasedEnsemble


def write_graph(released: Released, path: Path) -> None:
    """Export a graph with a dynamic batch dimension, and check it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own internals
        torch.onnx.export(
            released.eval().requires_grad_(False),  # A graph for gradients takes a quarter longer.
            (torch.zeros(2, CROP_PX, CROP_PX, 3, dtype=torch.uint8),),
            str(path),
            input_names=["crops"],
            output_names=["logits", "relevance"] if released.explains else ["logits"],
            opset_version=OPSET,
            dynamic_shapes=({0: torch.export.Dim("faces", min=1, max=4096)},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(str(path))
    _remove_traces(model)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


def _remove_traces(model: onnx.ModelProto) -> None:
    """Remove stack traces and local paths."""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del model.graph.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    for function in model.functions:
        del function.metadata_props[:]


@torch.no_grad()
def torch_logits(released: Released, crops: Array) -> Array:
    """Logits (N, 7) float32 of (N, 112, 112, 3) uint8 crops, computed in fp32."""
    parts = torch.split(torch.from_numpy(np.array(crops)), 128)
    return np.concatenate([released.eval()(part)[0].numpy() for part in parts])


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
