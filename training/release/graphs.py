"""The graphs of a release: one network, or the mean of several over a face and its mirror image, as ONNX."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

import numpy as np
import onnx
import torch
from torch import Tensor, nn

from data.contract import CROP_PX, Array, softmax
from data.errors import MienError
from models.network import FaceNetwork, Head, select_head
from models.rollout import has_attention, recorded_attention, rollout

OPSET: Final = 20
MAX_FP32_DIFFERENCE: Final = 1e-4  # largest difference of a probability
MIN_FP16_AGREEMENT: Final = 0.999  # share of faces with the same top label


class ExportError(MienError):
    """A run that must not be released: the graph does not answer as the network does."""


class ReleasedNetwork(nn.Module):
    """What is exported: uint8 crops to float32 logits of the chosen head, the backbone in one precision.

    A transformer also answers with its attention rollout, which costs next to nothing beside the logits.
    """

    def __init__(self, network: FaceNetwork, head: Head) -> None:
        super().__init__()
        self.preprocess = network.preprocess  # stays in fp32: a mean over 12,544 pixels loses bits in fp16
        self.backbone = network.backbone
        self.head: Head = head
        self.explains = has_attention(network.backbone)

    def forward(self, crops: Tensor) -> tuple[Tensor, ...]:  # (N, 112, 112, 3) uint8
        pixels = self.preprocess(crops).to(next(self.backbone.parameters()).dtype)
        if not self.explains:
            return (select_head(self.backbone(pixels), self.head),)  # (N, 7) float32
        with recorded_attention(self.backbone) as attentions:
            logits = select_head(self.backbone(pixels), self.head)
        return logits, rollout(attentions, head=self.head)  # (N, 7), (N, side, side) float32

    def in_half(self) -> "ReleasedNetwork":
        """The backbone in fp16; changes this module."""
        self.backbone.half()
        return self


class ReleasedEnsemble(nn.Module):
    """Log of the mean calibrated probability of several networks, over each face and its mirror image.

    The relevance is that of the first network, for the face as it is.
    """

    def __init__(self, members: Sequence[ReleasedNetwork], temperatures: Sequence[float]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.temperatures = tuple(temperatures)
        self.explains = members[0].explains

    def forward(self, crops: Tensor) -> tuple[Tensor, ...]:  # (N, 112, 112, 3) uint8
        faces = crops.shape[0]
        both = torch.cat([crops, crops.flip(2)])  # (2N, 112, 112, 3)
        outputs = [cast(tuple[Tensor, ...], member(both)) for member in self.members]
        scaled = [output[0] / temperature for output, temperature in zip(outputs, self.temperatures, strict=True)]
        probabilities = torch.stack(scaled).softmax(dim=-1).mean(dim=0)  # (2N, 7)
        logits = ((probabilities[:faces] + probabilities[faces:]) / 2).clamp_min(1e-12).log()
        return (logits, outputs[0][1][:faces]) if self.explains else (logits,)

    def in_half(self) -> "ReleasedEnsemble":
        """The backbones in fp16; changes this module."""
        for member in self.members:
            cast(ReleasedNetwork, member).in_half()
        return self


Released = ReleasedNetwork | ReleasedEnsemble


def write_graph(released: Released, path: Path) -> None:
    """Export with a dynamic batch and check the file's well-formedness."""
    example = torch.zeros(2, CROP_PX, CROP_PX, 3, dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's deprecation notes speak of its own insides
        torch.onnx.export(
            released.eval(),
            (example,),
            str(path),
            input_names=["crops"],
            output_names=["logits", "relevance"] if released.explains else ["logits"],
            opset_version=OPSET,
            dynamic_shapes={"crops": {0: torch.export.Dim("faces", min=1, max=4096)}},
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    model = onnx.load(str(path))
    _without_traces(model)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


def _without_traces(model: onnx.ModelProto) -> None:
    """Remove stack traces and paths of the machine that exported: they do not belong in a release."""
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del model.graph.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]
    for function in model.functions:
        del function.metadata_props[:]


@torch.no_grad()
def torch_logits(released: Released, crops: Array, *, batch: int = 128) -> Array:
    """(N, 7) float32 logits in fp32, of crops (N, 112, 112, 3) uint8."""
    parts = [torch.from_numpy(np.array(crops[start : start + batch])) for start in range(0, len(crops), batch)]
    return np.concatenate([released.eval()(part)[0].numpy() for part in parts])


def check_fp32(expected_logits: Array, found_logits: Array) -> float:
    """Largest difference of a probability, (N, 7) each. Raises: ExportError, when it is above the bound."""
    difference = float(np.abs(softmax(expected_logits) - softmax(found_logits)).max())
    if not difference <= MAX_FP32_DIFFERENCE:
        raise ExportError(f"fp32 graph: a probability differs from torch's by {difference:.2e}, 1e-4 is allowed")
    return difference


def check_fp16(fp32_logits: Array, fp16_logits: Array) -> float:
    """Share of faces with the same top label, (N, 7) each. Raises: ExportError, when it is below the bound."""
    same = float((fp32_logits.argmax(axis=1) == fp16_logits.argmax(axis=1)).mean())
    if not same >= MIN_FP16_AGREEMENT:
        raise ExportError(f"fp16 graph: {100 * same:.2f} % of the faces keep their label, at least 99.9 % must")
    return same


def tinted(crops: Array, *, seed: int = 0) -> Array:
    """Tint gray crops so that a check also exercises the graph's way from RGB to luminance; as `crops`."""
    tint = np.random.default_rng(seed).uniform(0.4, 1.0, (len(crops), 1, 1, 3))
    return np.clip(crops * tint, 0, 255).astype(np.uint8)
