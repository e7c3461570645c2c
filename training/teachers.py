"""Teachers for distillation: finished runs or released artifacts, alone or as an ensemble."""

import hashlib
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from mien.data.contract import LABELS, Array, contract_id
from mien.models.backbones import Heads
from mien.models.manifest import MANIFEST_NAME, ArtifactError, GraphFile, load_artifact
from mien.models.network import Head, select_head
from mien.training.config import DistillationConfig, RecipeError
from mien.training.evaluate import open_graph, run_graph
from mien.training.faces import Split, cache_file
from mien.training.run_folder import RunError
from mien.training.runtime import Runtime
from mien.training.weights import WEIGHTS_NAME, load_trained

logger = logging.getLogger(__name__)
_BATCH = 256
_PART = 8 * _BATCH  # faces after which an interrupted run continues


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
                    network, head, labels = _Graph(folder, manifest.graph("fp32")), "class", manifest.labels
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
        return _log_mean(torch.stack(logits))


class _Graph(nn.Module):
    """Fp32 graph of an artifact without weights, such as the mean of several networks; computed on the CPU."""

    def __init__(self, folder: Path, graph: GraphFile) -> None:
        super().__init__()
        self.session = open_graph(folder / graph.file)
        self.register_buffer("sha256", torch.tensor(list(bytes.fromhex(graph.sha256)), dtype=torch.uint8))

    def forward(self, crops: Tensor) -> Heads:  # (B, 112, 112, C) uint8
        logits = run_graph(self.session, crops.expand(-1, -1, -1, 3).cpu().numpy())
        return Heads(torch.from_numpy(logits).to(crops.device))


def fixed_logits(teachers: Teachers, faces: Split, *, runtime: Runtime, cache_dir: Path) -> Array:
    """Log of the mean probability of the teachers over each face and its mirror image, (N, K) float32.

    Cached in `cache_dir` until the teachers, their heads, the precision, the faces, their color or the contract change;
    in parts until all are there.
    """
    data = f"{faces.index_sha256} {faces.crops[0].shape[-1]}"
    precision = runtime.autocast.fast_dtype if runtime.autocast._enabled else torch.float32
    state = hashlib.sha256("".join([contract_id(), str(precision), *teachers.heads, data, *faces.keys]).encode())
    state.update(" ".join(faces.classes).encode())
    for name, tensor in teachers.state_dict().items():
        state.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    path = cache_dir / f"teacher_logits-{state.hexdigest()[:16]}.npy"
    teachers.eval()
    started = time.monotonic()

    def apply(start: int) -> Array:
        batches, stop = [], min(start + _PART, len(faces))
        for first in range(start, stop, _BATCH):
            crops = np.stack([faces.crops[index] for index in range(first, min(first + _BATCH, stop))])
            pixels = torch.from_numpy(crops).to(runtime.device)
            with torch.no_grad(), runtime.autocast:
                both_views = [teachers(view).float() for view in (pixels, pixels.flip(dims=[2]))]
            batches.append(_log_mean(torch.stack(both_views)).cpu().numpy())
        minutes = (time.monotonic() - started) / 60
        logger.info("applied the teachers to faces %d to %d of %d, %.0f minutes", start, stop, len(faces), minutes)
        return np.concatenate(batches)

    parts = {start: path.with_name(f"{path.stem}.{start}.npy") for start in range(0, len(faces), _PART)}
    logits = _cached(
        path, lambda: np.concatenate([_cached(part, partial(apply, start)) for start, part in parts.items()])
    )
    for part in parts.values():
        part.unlink(missing_ok=True)
    return logits


def _cached(path: Path, compute: Callable[[], Array]) -> Array:
    """Read an array of the cache, or compute and write it. Raises: DatasetError, if the disk is full."""
    if not path.exists():
        computed = compute()
        with cache_file(path, "logits of the teachers", size=computed.nbytes) as file:
            np.save(file, computed)
    cached: Array = np.load(path)
    return cached


def _log_mean(logits: Tensor) -> Tensor:
    """Log of the mean probability over the first dimension, (M, B, K) to (B, K)."""
    return logits.softmax(dim=-1).mean(dim=0).clamp_min(1e-12).log()
