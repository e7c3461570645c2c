"""The loss of a training step, computed by an own formula, and the choice of the best epoch."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mien.training.loop.supervised import Supervised
from scipy.special import log_softmax, softmax

from mien.data.contract import LABELS, Array
from mien.models.network import FaceNetwork
from mien.training.config import DistillationConfig
from mien.training.loop import supervised
from mien.training.loop.batches import FaceBatch, Faces, JoinedFaces
from mien.training.loop.checkpoint import BEST, read
from tests.support import random_crops
from tests.support_training import cpu, small_recipe

COUNTS = np.array([20, 3, 3, 9, 9, 6, 6])


def unequal_faces() -> Faces:
    labels = np.repeat(np.arange(len(LABELS)), COUNTS)
    crops = random_crops(len(labels))[..., :1]
    return Faces(crops, np.eye(7, dtype=np.float32)[labels], labels, tuple(map(str, range(len(labels)))), "drawn")


def task_of(folder: Path, **changes: object) -> Supervised:
    recipe, faces = small_recipe(folder, **changes), unequal_faces()
    torch.manual_seed(0)
    return Supervised(recipe, folder, FaceNetwork(recipe.model), JoinedFaces([faces]), valid=faces, machine=cpu())


def teach(task: Supervised, *, weight: float) -> "Spy":
    """Give a task a teacher, which it would otherwise open from a folder."""
    distillation = DistillationConfig.model_construct(mode="soft", weight=weight, temperature=2.0)
    task.recipe = task.recipe.model_copy(update={"distillation": distillation})
    task.teachers = Spy()
    return task.teachers


def batch_of(task: Supervised) -> FaceBatch:
    faces = task.valid
    chosen = np.arange(0, 56, 5)
    return FaceBatch(torch.from_numpy(faces.crops[chosen]), torch.from_numpy(faces.targets[chosen]))


class Spy(torch.nn.Module):
    """A teacher with the probabilities of a draw, which remembers what it saw."""

    num_classes = len(LABELS)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        self.seen.append(crops)
        return torch.from_numpy(np.random.default_rng(1).normal(size=(len(crops), len(LABELS)))).float()


def expected_supervised(logits: Array, targets: Array, *, tau: float) -> float:
    log_probabilities = log_softmax(logits + tau * np.log(COUNTS / COUNTS.sum()), axis=1)
    return float(-(targets * log_probabilities).sum(axis=1).mean())


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_loss_has_the_adjustment_and_the_share_of_the_teacher(tmp_path: Path, tau: float, weight: float) -> None:
    task = task_of(tmp_path, loss={"logit_adjustment": tau})
    teach(task, weight=weight)
    batch = batch_of(task)
    task.network.eval()
    with torch.no_grad():
        losses = task.losses(task.network, batch)
    logits = task.network(batch.crops).class_logits.detach().numpy()
    taught = Spy()(batch.crops).numpy() / 2
    divergence = (softmax(taught, axis=1) * (log_softmax(taught, axis=1) - log_softmax(logits / 2, axis=1))).sum(axis=1)
    hard = expected_supervised(logits, batch.targets.numpy(), tau=tau)
    assert float(losses["supervised"]) == pytest.approx(hard, rel=1e-4)
    assert float(losses["loss"]) == pytest.approx((1 - weight) * hard + weight * 4 * divergence.mean(), rel=1e-4)


def test_teacher_sees_the_mixed_crops_of_the_student(tmp_path: Path) -> None:
    task = task_of(tmp_path, mix={"mixup": 0.8, "probability": 1.0})
    teacher = teach(task, weight=0.5)
    student: list[torch.Tensor] = []

    def forward(crops: torch.Tensor) -> Any:
        student.append(crops)
        return task.network(crops)

    batch = batch_of(task)
    mixed = task.prepare(batch, 3)
    task.losses(forward, mixed)
    assert not torch.equal(student[0], batch.crops)
    assert torch.equal(teacher.seen[0], student[0])


def test_best_epoch_is_the_one_with_the_best_score_also_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.5, 0.7, 0.6])
    monkeypatch.setattr(
        supervised, "_score", lambda *_: dict.fromkeys(("accuracy", "mean_class_accuracy"), next(scores))
    )
    task = task_of(tmp_path)
    session: Any = SimpleNamespace(world=task.machine.world, averaged=task.network, log=lambda _: None)
    task.end_epoch(session, 0)
    task.end_epoch(session, 1)
    resumed = task_of(tmp_path)
    resumed.load_state(task.state())
    resumed.end_epoch(session, 2)
    assert (resumed.best_score, resumed.best_epoch) == (0.7, 1)
    assert read(tmp_path / BEST)["epoch"] == 1
