"""Device, precision and processes of a run."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import torch
from timm.layers.config import set_fused_attn
from torch import distributed

from mien.training.config import RecipeError, RuntimeConfig
from mien.training.loop.parallel import World

# the type of the matrix multiplications; of fp32 runs, for comparison only
DTYPES: Final = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_DATA_PREPARED: Final = timedelta(hours=12)  # while the others wait: decoding, labels of a detector, fixed teachers


@dataclass(frozen=True, slots=True)
class Machine:
    """Device and precision of this process, and its rank."""

    device: torch.device
    autocast: torch.autocast
    world: World = World()  # noqa: RUF009 (frozen)


@contextmanager
def use_machine(runtime: RuntimeConfig) -> Iterator[Machine]:
    """Join the process group of torchrun, if there is one, for the duration of a block. Raises: RecipeError."""
    device, autocast = choose_device(runtime)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Machine(device, autocast)
        return
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_DATA_PREPARED)
    try:
        yield Machine(device, autocast, World(distributed.get_rank(), size))
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
