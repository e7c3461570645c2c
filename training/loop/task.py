"""Tasks of a session: what is trained, on which batches, and with which loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mien.data.contract import Array
from mien.training.config import Recipe, RecipeError, RunRecipe
from mien.training.loop.batches import FaceBatch, FaceBatches, JoinedFaces, epoch_order
from mien.training.loop.machine import Machine

if TYPE_CHECKING:
    from mien.training.loop.session import Session

Forward = Callable[..., Any]
Batch = Any  # a NamedTuple of tensors of length B, or None; each task has its own


def batch_map(convert: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """The batch with every tensor converted."""
    return batch._make(None if tensor is None else convert(tensor) for tensor in batch)


class Task(ABC):
    """A network, its batches and loss, and validation after each epoch."""

    recipe: RunRecipe
    machine: Machine
    network: nn.Module
    epochs: int
    steps_per_epoch: int
    all_weights_used: bool = True  # whether each step uses every weight; needed for several processes

    @abstractmethod
    def dataset(self, epoch: int) -> Dataset[Batch]:
        """Map-style dataset of this process's part of the batches of an epoch."""

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield the batches of an epoch from number `first`, loaded by worker processes."""
        dataset, workers = self.dataset(epoch), self.recipe.runtime.workers
        loader: DataLoader[Batch] = DataLoader(
            dataset,
            batch_size=None,
            sampler=range(first, len(dataset)),  # type: ignore[arg-type]  # map-style datasets have a length
            num_workers=workers,
            prefetch_factor=4 if workers else None,
            # otherwise, the loader would use the global generator, which dropout uses and checkpoints save
            generator=torch.Generator().manual_seed(self.recipe.seed),
        )
        yield from loader

    def names(self, step: int) -> list[str]:
        """Names of the samples in the batch of a step, to find the cause of a loss that is not finite."""
        return []

    def prepare(self, batch: Batch, step: int) -> Batch:
        """Convert a loaded batch to the one of `losses`, such as by mixing its faces."""
        return batch

    @abstractmethod
    def losses(self, forward: Forward, batch: Batch) -> dict[str, Tensor]:
        """Means over a batch or a part of it, scalars by name; `loss` comes first and is minimized."""

    def summary(self, means: dict[str, float]) -> dict[str, float]:
        """Metrics to log for a step, from the means of `losses`."""
        return means

    @abstractmethod
    def end_epoch(self, session: "Session", epoch: int) -> None:
        """Validate and save. Every process calls it."""

    def state(self) -> dict[str, Any]:
        """State of the task to save in checkpoints, in addition to its network."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:  # noqa: B027 (a task may have no state)
        """Restore the result of `state`."""


class FaceTask(Task):
    """A task on crops of faces and their targets.

    Raises: RecipeError, if a batch is larger than the data.
    """

    recipe: Recipe

    def __init__(self, recipe: Recipe, faces: JoinedFaces, machine: Machine) -> None:
        self.recipe, self.faces, self.machine = recipe, faces, machine
        self.epochs = recipe.epochs
        self.steps_per_epoch = len(faces) // recipe.batch_size  # the last, incomplete batch is dropped
        if self.steps_per_epoch == 0:
            raise RecipeError(f"batch_size {recipe.batch_size}: larger than the {len(faces)} training faces")

    def dataset(self, epoch: int) -> Dataset[FaceBatch]:
        """This process's faces."""
        return FaceBatches(self.faces, self.recipe, self._order(epoch), epoch=epoch, world=self.machine.world)

    def names(self, step: int) -> list[str]:
        """Keys of the faces."""
        epoch, number = divmod(step, self.steps_per_epoch)
        size = self.recipe.batch_size
        return [self.faces.keys[int(i)] for i in self._order(epoch)[number * size : (number + 1) * size]]

    def _order(self, epoch: int) -> Array:
        labels, seed, sampler = self.faces.labels, self.recipe.seed, self.recipe.data.sampler
        return epoch_order(labels, seed=seed, epoch=epoch, sampler=sampler)
