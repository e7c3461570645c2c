"""The teachers of a distillation: finished runs, released artefacts, or several of either as an ensemble."""

from pathlib import Path
from typing import Final

import onnxruntime
import torch
from torch import Tensor, nn

from models.manifest import MANIFEST_NAME, ArtefactError, load_artefact, sha256_of
from models.network import FaceNetwork, Head, select_head
from training import checkpoint
from training.config import DistillationConfig
from training.run import RunError, load_best

_PROVIDERS: Final = ("CUDAExecutionProvider", "CPUExecutionProvider")


class Teachers(nn.Module):
    """One or several frozen teachers; an ensemble answers with the log of its mean probability.

    Raises: RunError, CheckpointError, for a teacher that is missing, damaged, or of other labels or another contract.
    """

    def __init__(self, config: DistillationConfig) -> None:
        super().__init__()
        self.members = nn.ModuleList(_load(folder) for folder in config.teachers)
        self.requires_grad_(False)

    def forward(self, crops: Tensor) -> Tensor:  # (B, 112, 112, C) uint8
        logits = [member(crops) for member in self.members]
        if len(logits) == 1:
            alone: Tensor = logits[0]  # (B, 7)
            return alone
        return torch.stack(logits).softmax(dim=-1).mean(dim=0).clamp_min(1e-12).log()


class _Run(nn.Module):
    """A run's best weights behind the head that validation chose for them."""

    def __init__(self, network: FaceNetwork, head: Head) -> None:
        super().__init__()
        self.network = network
        self.head: Head = head

    def forward(self, crops: Tensor) -> Tensor:
        colour = self.network.preprocess.colour == "RGB"
        return select_head(self.network(_as_rgb(crops) if colour else crops), self.head)


class _Artefact(nn.Module):
    """A released graph in ONNX Runtime: on the GPU where its build can, else on the CPU."""

    def __init__(self, graph: Path) -> None:
        super().__init__()
        usable = [name for name in _PROVIDERS if name in onnxruntime.get_available_providers()]
        if not torch.cuda.is_available():
            usable = ["CPUExecutionProvider"]
        self.session = onnxruntime.InferenceSession(str(graph), providers=usable)
        self.input = self.session.get_inputs()[0].name

    def forward(self, crops: Tensor) -> Tensor:
        pixels = _as_rgb(crops).contiguous().cpu().numpy()
        answer = self.session.run(["logits"], {self.input: pixels})[0]  # before temperature, as a run's are
        return torch.from_numpy(answer).to(crops.device)


def _as_rgb(crops: Tensor) -> Tensor:
    return crops.expand(-1, -1, -1, 3)


def _is_artefact(folder: Path) -> bool:
    return (folder / MANIFEST_NAME).exists()


def _load(folder: Path) -> nn.Module:
    if not _is_artefact(folder):
        network, state = load_best(folder)
        return _Run(network, state.get("head", "class"))
    try:
        return _Artefact(folder / load_artefact(folder).graph("fp32").file)
    except ArtefactError as error:
        raise RunError(f"distillation.teachers {folder}: {error}") from error


def teacher_sha256(folder: Path) -> str:
    """Hash of a teacher's weights: of its best checkpoint, or of its fp32 graph as the manifest states it."""
    if _is_artefact(folder):
        return load_artefact(folder).graph("fp32").sha256
    return sha256_of(folder / checkpoint.BEST)
