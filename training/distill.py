"""Teachers for distillation: finished runs or released artifacts, alone or together."""

import torch
from torch import Tensor, nn

from mien.data.contract import LABELS
from mien.models.manifest import ArtifactError
from mien.models.network import Head, select_head
from mien.training.config import DistillationConfig, RecipeError
from mien.training.run import RunError
from mien.training.weights import load_trained


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
            try:
                network, head, labels = load_trained(folder)
            except ArtifactError as error:
                raise RunError(f"distillation.teachers {folder}: {error}") from error
            self.members.append(network)
            self.heads.append(head)
            if unknown := [name for name in classes if name not in labels]:
                raise RecipeError(f"distillation.teachers {folder}: does not know {', '.join(unknown)}")
            columns.append([labels.index(name) for name in classes])
        # Columns of each teacher in the order of `classes`; a list would be copied to the device in each step.
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
