"""Data-parallel training in several processes, started by torchrun.

    torchrun --nproc-per-node=2 -m mien.training.train RECIPE

Only rank 0 writes. The global batch is split, so losses do not depend on the number of processes, except by BatchNorm
(synchronized on GPUs, not of a detector), by dropout, and of a detector, by the mean over the cells of each part.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mien.data.contract import Array

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class World:
    """Rank of this process and number of processes."""

    rank: int = 0
    size: int = 1

    @property
    def is_main_process(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    def shard(self, batch: Array) -> Array:
        """This process's part of a batch of indices, (B / size,).

        Mixing combines faces i and B - 1 - i, so both are in the same part.
        """
        if self.size == 1:
            return batch
        half = len(batch) // (2 * self.size)
        start, end = self.rank * half, (self.rank + 1) * half
        return np.concatenate([batch[start:end], batch[len(batch) - end : len(batch) - start]])

    def mean(self, values: Tensor) -> Tensor:
        """Mean of `values` over the processes; all of them must call it."""
        if self.size > 1:
            distributed.all_reduce(values)
            values = values / self.size
        return values

    def gather(self, value: Value) -> list[Value]:
        """Values of all processes, by rank; all of them must call it."""
        values: list[Value] = [value] * self.size
        if self.size > 1:
            distributed.all_gather_object(values, value)
        return values

    def main_process_first(self, work: Callable[[], Value]) -> Value:
        """Run `work` on rank 0, then on the others, which can use its files."""
        if not self.is_main_process:
            distributed.barrier()
            return work()
        done = work()
        if self.size > 1:
            distributed.barrier()
        return done

    def wrap(self, network: nn.Module, *, all_used: bool) -> nn.Module:
        """Average gradients over the processes; `all_used` means that each step uses every weight."""
        if self.size == 1:
            return network
        return DistributedDataParallel(network, find_unused_parameters=not all_used)
