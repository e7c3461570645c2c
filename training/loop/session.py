"""Training loop: steps, epochs, and the state saved in checkpoints.

training/train.py, training/pretrain.py and training/detector/train.py share it, with different `Task`s. Order,
augmentation and random numbers depend only on the seed and the step, so a resumed run has the same losses as an
uninterrupted one.
"""

import logging
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mien.data.contract import contract_id
from mien.data.errors import MienError
from mien.training.config import RecipeError, RunRecipe
from mien.training.loop import checkpoint, parallel
from mien.training.loop.machine import DTYPES, Machine
from mien.training.loop.optimizer import build_average, build_optimizer, build_scheduler
from mien.training.loop.run_folder import METRICS_NAME
from mien.training.loop.sharpness import perturbed_weights
from mien.training.loop.task import Task
from mien.training.loop.throughput import (
    Clock,
    MetricsLogger,
    TrainingDiverged,
    matmul_flops_per_s,
    progress_bar,
    warn_of_slow_bf16,
)
from mien.training.loop.trackers import open_trackers

logger = logging.getLogger("mien.training")


class OutOfMemory(MienError):
    """A batch that does not fit in the memory of the device."""


class Session:
    """One training run.

    Raises: RecipeError, if a batch cannot be split evenly among the processes.
    """

    def __init__(self, recipe: RunRecipe, out: Path, task: Task, *, machine: Machine) -> None:
        self.recipe, self.out, self.task = recipe, out, task
        self.world, self.device, self.steps = machine.world, machine.device, task.steps_per_epoch
        self._check_batch()
        network, optim = task.network, recipe.optim
        self.optimizer = build_optimizer(network, optim)
        self.scheduler = build_scheduler(self.optimizer, optim, epochs=task.epochs, steps_per_epoch=self.steps)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.runtime.precision == "fp16")
        self.ema = None
        if optim.ema_decay is not None:
            self.ema = build_average(network, decay=optim.ema_decay, warmup=optim.ema_warmup)
        self.step = 0
        self.metrics: MetricsLogger | None = None
        self.step_flops = task.step_flops()
        compiled: Any = torch.compile(network) if recipe.runtime.compile else network
        self.forward = self.world.wrap(compiled, all_used=task.all_weights_used)

    def _check_batch(self) -> None:
        size, processes = self.recipe.batch_size, self.world.size
        if self.recipe.optim.sam_rho is not None and self.recipe.runtime.precision == "fp16":
            raise RecipeError(
                "optim.sam_rho does not support the scaled gradients of runtime.precision fp16; use bf16 or fp32"
            )
        if processes > 1 and size % (2 * processes):
            raise RecipeError(f"batch_size {size}: expected a multiple of {2 * processes} for {processes} processes")

    @property
    def averaged(self) -> nn.Module:
        """The network to validate and save: the moving average of the weights if enabled, else the trained network."""
        return self.task.network if self.ema is None else self.ema.module

    def run(self) -> None:
        """Train to the end, from the newest checkpoint if there is one. Raises: TrainingDiverged, OutOfMemory."""
        if self.device.type == "cpu" and self.recipe.runtime.precision == "bf16":
            warn_of_slow_bf16(self.device)
        self.resume()
        try:
            self._run_epochs()
        except RuntimeError as error:  # of CUDA a subclass, of the CPU's allocator not
            if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
            parts = 2 * self.recipe.runtime.accumulate
            raise OutOfMemory(
                f"out of memory on {self.device} at batch_size {self.recipe.batch_size}. Split each batch with "
                f"runtime.accumulate={parts}, or reduce batch_size or model.img_size."
            ) from error
        finally:
            if self.metrics is not None:
                self.metrics.close()

    def _run_epochs(self) -> None:
        for epoch in range(self.step // self.steps, self.task.epochs):
            self.run_epoch(epoch)
            stop = self.task.end_epoch(self, epoch)
            self.save_last()
            if stop:
                break

    def run_epoch(self, epoch: int) -> None:
        """Train from the next step to the end of `epoch`."""
        self.task.network.train()
        first, clock = self.step - epoch * self.steps, Clock()
        with progress_bar(shown=self.world.writes) as progress:
            title = f"epoch {epoch + 1}/{self.task.epochs}"
            bar = progress.add_task(title, total=self.steps, completed=first, note="")
            for batch in self.task.batches(epoch, first):
                clock.batch_loaded()
                parts = self.optimizer_step(tuple(tensor.to(self.device) for tensor in batch))
                clock.step_done(self.recipe.batch_size)
                note = f"loss {parts['loss']:.3f}  {clock.faces_per_s:.0f} images/s"
                progress.update(bar, advance=1, note=note)
                self._record(parts, clock, ends_epoch=self.step == (epoch + 1) * self.steps)
        self._report_speed(clock)

    def optimizer_step(self, loaded: tuple[Tensor, ...]) -> dict[str, float]:
        """Train on one batch; returns its mean losses by name, and the learning rate."""
        self.scheduler.step_update(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.task.prepare(*loaded, step=self.step)
        means = self.accumulate_gradients(batch)
        if not math.isfinite(means["loss"]):
            inspect = ", or inspect this batch: " + ", ".join(names) if (names := self.task.names(self.step)) else ""
            raise TrainingDiverged(f"step {self.step}: loss is {means['loss']}. Reduce optim.learning_rate{inspect}")
        if self.recipe.optim.sam_rho is not None:
            with perturbed_weights(self.task.network, self.recipe.optim.sam_rho):
                self.accumulate_gradients(batch)
        if self.recipe.optim.clip_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.task.network.parameters(), self.recipe.optim.clip_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step += 1
        if self.ema is not None:
            self.ema.update(self.task.network, step=self.step)
        return {**self.task.summary(means), "lr": max(group["lr"] for group in self.optimizer.param_groups)}

    def accumulate_gradients(self, batch: tuple[Tensor, ...]) -> dict[str, float]:
        """Accumulate the gradients of a batch in `runtime.accumulate` parts; returns its mean losses by name."""
        parts = self.recipe.runtime.accumulate
        found = torch.zeros((), device=self.device)
        names: list[str] = []
        for number, part in enumerate(zip(*(tensor.tensor_split(parts) for tensor in batch), strict=True), start=1):
            share = len(part[0]) / len(batch[0])
            with nullcontext() if number == parts else parallel.without_sync(self.forward):
                losses = self.task.losses(self.forward, *part)
                self.scaler.scale(losses["loss"] * share).backward()  # type: ignore[no-untyped-call]
            names = list(losses)
            found = found + share * torch.stack([value.detach() for value in losses.values()])
        return dict(zip(names, self.world.mean(found).tolist(), strict=True))

    def _record(self, parts: dict[str, float], clock: Clock, *, ends_epoch: bool) -> None:
        runtime = self.recipe.runtime
        short_epoch = ends_epoch and self.steps < runtime.log_every_steps  # a report needs at least one line
        if self.step % runtime.log_every_steps == 0 or short_epoch:
            self.log({**parts, **clock.rates()})
        # the last step of an epoch is saved after its validation, which a resumed run would skip otherwise
        if self.step % runtime.checkpoint_every_steps == 0 and not ends_epoch:
            self.save_last()

    def log(self, values: dict[str, Any]) -> None:
        """Add a line of metrics at the current step; only rank 0 writes."""
        if self.metrics is not None:
            self.metrics.add({"step": self.step, **values})

    def _report_speed(self, clock: Clock) -> None:
        """Log the speed of the epoch, also as a share of the device's matrix multiplication rate."""
        rates = clock.rates()
        if not self.world.writes or not clock.faces:
            return
        reachable = self.world.size * matmul_flops_per_s(self.device, DTYPES[self.recipe.runtime.precision])
        reached = clock.faces_per_s * self.step_flops
        speed = {
            "step_gflops_per_face": round(self.step_flops / 1e9, 4),
            "matmul_tflops_per_s": round(reachable / 1e12, 3),
            "matmul_share": round(reached / reachable, 4),
        }
        self.log({**rates, **speed})
        logger.info(
            "%.0f images/s, %.1f %% of the time waiting for data, %.1f %% of the matrix multiplication rate",
            rates["faces_per_s"], 100 * rates["data_wait_share"], 100 * speed["matmul_share"],
        )  # fmt: skip

    def save_last(self) -> None:
        """Save the complete state; every process must call it, and rank 0 writes."""
        state = self.state()
        if self.world.writes:
            checkpoint.save_last(self.out, state)

    def state(self) -> dict[str, Any]:
        """State that the next step depends on; every process must call it."""
        own = {"rng": torch.get_rng_state(), "cuda_rng": torch.cuda.get_rng_state_all()}
        state = {
            "contract_id": contract_id(),
            "network": self.task.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **own,
            **self.task.state(),
            "step": self.step,
        }
        if self.ema is not None:
            state["ema"] = self.ema.module.state_dict()
        if self.scaler.is_enabled():
            state["scaler"] = self.scaler.state_dict()
        if self.world.size > 1:
            state["ranks"] = self.world.gather(own)
        return state

    def resume(self) -> None:
        """Load the newest intact checkpoint, if there is one, and drop later lines of the metrics file."""
        state = checkpoint.read_newest(self.out)
        if state is not None:
            self._load(state)
            logger.info("resumed at step %d of %d", self.step, self.steps * self.task.epochs)
        self._set_random_state(state)
        if self.world.writes:
            trackers = open_trackers(self.recipe.runtime, self.out, name=self.recipe.name, step=self.step)
            self.metrics = MetricsLogger(self.out / METRICS_NAME, step=self.step, trackers=trackers)

    def _load(self, state: dict[str, Any]) -> None:
        self.task.network.load_state_dict(state["network"])
        self.task.load_state(state)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.ema is not None:
            self.ema.module.load_state_dict(state["ema"])
        if "scaler" in state:
            self.scaler.load_state_dict(state["scaler"])
        self.step = state["step"]

    def _set_random_state(self, state: dict[str, Any] | None) -> None:
        ranks = [] if state is None else state.get("ranks", [state])
        if self.world.rank < len(ranks):
            own = ranks[self.world.rank]
            torch.set_rng_state(own["rng"])
            if own["cuda_rng"]:
                torch.cuda.set_rng_state_all(own["cuda_rng"])
        elif self.world.rank:  # each process has its own dropout
            torch.manual_seed(int(np.random.SeedSequence([self.recipe.seed, self.world.rank]).generate_state(1)[0]))
