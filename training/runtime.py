"""Device, precision and processes of a run.

    torchrun --nproc-per-node=2 -m mien.training.train RECIPE

Only rank 0 writes. The global batch is split, so losses do not depend on the number of processes, except by BatchNorm
(synchronized on GPUs, not of a detector), by dropout, and of a detector, by the mean over the cells of each part.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeVar

import numpy as np
import torch
from timm.layers.config import set_fused_attn
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from mien.data.contract import Array
from mien.training.config import RecipeError, RuntimeConfig

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class World:
    """Rank of this process and number of processes."""

    rank: int = 0
    size: int = 1

    @property
    def is_main_process(self) -> bool:
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


# the type of the matrix multiplications; of fp32 runs, for comparison only
DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DATA_PREPARED: Final = timedelta(hours=12)  # while the others wait: decoding, labels of a detector, fixed teachers


@dataclass(frozen=True, slots=True)
class Runtime:
    """Device and precision of this process, and its rank."""

    device: torch.device
    autocast: torch.autocast
    world: World = World()


@contextmanager
def setup_runtime(config: RuntimeConfig) -> Iterator[Runtime]:
    """Join the process group of torchrun, if there is one, for the duration of a block. Raises: RecipeError."""
    device, autocast = choose_device(config)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Runtime(device, autocast)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_DATA_PREPARED)
    try:
        yield Runtime(device, autocast, World(distributed.get_rank(), size))
    finally:
        distributed.destroy_process_group()


def choose_device(runtime: RuntimeConfig) -> tuple[torch.device, torch.autocast]:
    """Choose device and precision; also sets the number of threads and the attention kernel. Raises: RecipeError."""
    wanted = ("cuda" if torch.cuda.is_available() else "cpu") if runtime.device == "auto" else runtime.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise RecipeError("runtime.device cuda: torch finds no GPU; use auto or cpu")
    if runtime.precision == "fp16" and wanted == "cpu":
        raise RecipeError("runtime.precision fp16 requires a GPU; use bf16 or fp32 on a CPU")
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    # torch's fused attention is slow for 50 tokens on a CPU: the tiny hybrid takes 0.65 s per step, 0.46 s without it
    set_fused_attn(wanted == "cuda")
    return torch.device(wanted), torch.autocast(wanted, DTYPES[runtime.precision], enabled=runtime.precision != "fp32")
