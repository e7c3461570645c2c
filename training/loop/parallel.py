"""Data-parallel training in several processes, started by torchrun.

    torchrun --nproc-per-node=2 -m mien.training.train RECIPE

Only rank 0 writes. The global batch is split, so losses do not depend on the number of processes.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class World:
    """Rank of this process and number of processes."""

    rank: int = 0
    size: int = 1

    @property
    def writes(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

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

    def first_alone(self, work: Callable[[], Value]) -> Value:
        """Run `work` on rank 0, then on the others, which can use its files."""
        if not self.writes:
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


def without_sync(trained: nn.Module) -> AbstractContextManager[object]:
    """Skip averaging gradients in this backward pass; a later one of the same step averages them."""
    return trained.no_sync() if isinstance(trained, DistributedDataParallel) else nullcontext()


def join(device: torch.device) -> tuple[World, torch.device]:
    """Join the process group of torchrun, if there is one; returns the device of this process."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return World(), device
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return World(distributed.get_rank(), size), device


def leave() -> None:
    """Leave the process group, if there is one."""
    if distributed.is_initialized():
        distributed.destroy_process_group()
