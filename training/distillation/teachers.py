"""Teachers for distillation: finished runs or released artifacts, alone or as an ensemble."""

from pathlib import Path

import torch
from torch import Tensor, nn

from models.manifest import MANIFEST_NAME, ArtifactError
from models.network import FaceNetwork, Head, select_head
from training.config import DistillationConfig
from training.loop.run_folder import RunError, load_best
from training.release.weights import load_network


class Teachers(nn.Module):
    """One or several frozen teachers; an ensemble returns the log of the mean probability.

    Raises: RunError, CheckpointError, if a teacher is missing or damaged, or has other labels or another contract.
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


class _Member(nn.Module):
    """A network with the head selected by validation."""

    def __init__(self, network: FaceNetwork, head: Head) -> None:
        super().__init__()
        self.network = network
        self.head: Head = head

    def forward(self, crops: Tensor) -> Tensor:
        color = self.network.preprocess.color == "RGB"
        return select_head(self.network(crops.expand(-1, -1, -1, 3) if color else crops), self.head)


def _load(folder: Path) -> nn.Module:
    if not (folder / MANIFEST_NAME).exists():
        network, state = load_best(folder)
        return _Member(network, state.get("head", "class"))
    try:
        network, manifest = load_network(folder)
    except ArtifactError as error:
        raise RunError(f"distillation.teachers {folder}: {error}") from error
    return _Member(network, manifest.head)
