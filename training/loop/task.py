"""Tasks of a session: what is trained, on which batches, and with which loss."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mien.data.contract import Array
from mien.training.config import FaceRecipe, RecipeError, Sampler
from mien.training.loop.batches import EpochPlan, FaceBatch, FaceBatches, JoinedFaces, epoch_order, load_batches
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

    network: nn.Module
    epochs: int
    steps_per_epoch: int
    all_weights_used: bool = True  # whether each step uses every weight; needed for several processes

    @abstractmethod
    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """This process's part of the batches of an epoch, starting with batch number `first`."""

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

    recipe: FaceRecipe
    sampler: Sampler = "instance"
    repeats: int = 1

    def __init__(self, recipe: FaceRecipe, faces: JoinedFaces, machine: Machine) -> None:
        self.recipe, self.faces, self.machine = recipe, faces, machine
        self.epochs = recipe.epochs
        self.steps_per_epoch = len(faces) // recipe.batch_size  # the last, incomplete batch is dropped
        if self.steps_per_epoch == 0:
            raise RecipeError(f"batch_size {recipe.batch_size}: larger than the {len(faces)} training faces")

    def batches(self, epoch: int, first: int) -> Iterator[FaceBatch]:
        """This process's faces."""
        recipe, world = self.recipe, self.machine.world
        plan = EpochPlan(recipe.seed, epoch, recipe.batch_size, world.rank, world.size)
        batches = FaceBatches(self.faces, recipe.augment, plan, self._order(epoch))
        return load_batches(batches, first=first, seed=recipe.seed, workers=recipe.runtime.workers)

    def names(self, step: int) -> list[str]:
        """Keys of the faces."""
        epoch, number = divmod(step, self.steps_per_epoch)
        size = self.recipe.batch_size
        return [self.faces.keys[int(i)] for i in self._order(epoch)[number * size : (number + 1) * size]]

    def _order(self, epoch: int) -> Array:
        labels, seed = self.faces.labels, self.recipe.seed
        return epoch_order(labels, seed=seed, epoch=epoch, sampler=self.sampler, repeats=self.repeats)
