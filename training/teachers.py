"""Teachers for distillation: finished runs or released artifacts, alone or as an ensemble."""

from pathlib import Path

import torch
from torch import Tensor, nn

from mien.data.contract import LABELS
from mien.models.backbones import Heads
from mien.models.manifest import MANIFEST_NAME, ArtifactError, load_artifact
from mien.models.network import Head, select_head
from mien.training.config import DistillationConfig, RecipeError
from mien.training.evaluate import open_graph, run_graph
from mien.training.run_folder import RunError
from mien.training.weights import WEIGHTS_NAME, load_trained


class Teachers(nn.Module):
    """One or several frozen teachers; an ensemble returns the log of the mean probability.

    Raises: RunError, CheckpointError, if a teacher is missing or damaged, or has other labels or another contract;
        RecipeError, if one of them does not know all classes.
    """

    columns: Tensor

    def __init__(self, config: DistillationConfig, classes: tuple[str, ...] = LABELS) -> None:
        super().__init__()
        self.members, self.heads = nn.ModuleList(), list[Head]()
        columns = []
        for folder in config.teachers:
            network: nn.Module
            head: Head
            try:
                if (folder / MANIFEST_NAME).exists() and WEIGHTS_NAME not in (manifest := load_artifact(folder)).files:
                    network, head, labels = _Graph(folder / manifest.graph("fp32").file), "class", manifest.labels
                else:
                    network, head, labels = load_trained(folder)
            except ArtifactError as error:
                raise RunError(f"distillation.teachers {folder}: {error}") from error
            self.members.append(network)
            self.heads.append(head)
            if unknown := [name for name in classes if name not in labels]:
                raise RecipeError(f"distillation.teachers {folder}: does not know {', '.join(unknown)}")
            columns.append([labels.index(name) for name in classes])
        # of each teacher, in the order of `classes`; on the device, to which a list in each step would wait
        self.register_buffer("columns", torch.tensor(columns), persistent=False)
        self.requires_grad_(False)
        self.to(memory_format=torch.channels_last)

    def forward(self, crops: Tensor) -> Tensor:  # (B, 112, 112, C) uint8
        logits = [
            select_head(member(crops), head)[:, columns]  # (B, K)
            for member, head, columns in zip(self.members, self.heads, self.columns, strict=True)
        ]
        if len(logits) == 1:
            return logits[0]
        return torch.stack(logits).softmax(dim=-1).mean(dim=0).clamp_min(1e-12).log()


class _Graph(nn.Module):
    """Fp32 graph of an artifact without weights, such as the mean of several networks; computed on the CPU."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.session = open_graph(path)

    def forward(self, crops: Tensor) -> Heads:  # (B, 112, 112, C) uint8
        logits = run_graph(self.session, crops.expand(-1, -1, -1, 3).cpu().numpy())
        return Heads(torch.from_numpy(logits).to(crops.device))
