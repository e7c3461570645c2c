"""Training loop: steps, epochs, and the state saved in checkpoints.

training/train.py and training/detector/train.py share it, with different `Task`s. Order,
augmentation and random numbers depend only on the seed and the step, so a resumed run has the same losses as an
uninterrupted one.
"""

import logging
import math
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from mien.data.contract import contract_id
from mien.data.errors import MienError
from mien.training.config import RecipeError, RunRecipe
from mien.training.loop import checkpoint
from mien.training.loop.machine import Machine
from mien.training.loop.optimizer import build_optimizer, build_scheduler
from mien.training.loop.run_folder import METRICS_NAME, check_run, record_run, run_lock
from mien.training.loop.sharpness import perturbed_weights
from mien.training.loop.task import Batch, Task, batch_map
from mien.training.loop.throughput import Clock, MetricsLogger, TrainingDiverged, progress_bar, warn_of_slow_bf16
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
        if recipe.optim.sam_rho is not None and recipe.runtime.precision == "fp16":
            raise RecipeError(
                "optim.sam_rho does not support the scaled gradients of runtime.precision fp16; use bf16 or fp32"
            )
        if self.world.size > 1 and recipe.batch_size % (2 * self.world.size):
            raise RecipeError(
                f"batch_size {recipe.batch_size}: expected a multiple of {2 * self.world.size} for {self.world.size} "
                "processes"
            )
        if (least := 2 * self.world.size * recipe.runtime.accumulate) > recipe.batch_size:
            raise RecipeError(
                f"batch_size {recipe.batch_size}: expected at least {least}, two samples for each part of each process"
            )
        network, optim = task.network, recipe.optim
        self.optimizer = build_optimizer(network, optim)
        self.scheduler = build_scheduler(self.optimizer, optim, epochs=task.epochs, steps_per_epoch=self.steps)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.runtime.precision == "fp16")
        self.ema = None
        if optim.ema_decay is not None:
            self.ema = ModelEmaV3(network, decay=optim.ema_decay, use_warmup=True)
        self.step = 0
        self.metrics: MetricsLogger | None = None
        compiled: Any = torch.compile(network) if recipe.runtime.compile else network
        self.forward: Any = self.world.wrap(compiled, all_used=task.all_weights_used)

    @property
    def averaged(self) -> nn.Module:
        """The network to validate and save: the moving average of the weights if enabled, else the trained network."""
        return self.task.network if self.ema is None else self.ema.module

    def run(self, facts: dict[str, Any]) -> None:
        """Train to the end, from the newest checkpoint if there is one; a finished run is left as it is.

        `facts` are for `run.json`, see `record_run`. Raises: RunError, TrainingDiverged, OutOfMemory.
        """
        if self.world.writes:
            check_run(self.out, self.recipe, facts)
        self.resume()
        if self.step == self.steps * self.task.epochs:
            logger.info("%s: finished", self.out)
            return
        with run_lock(self.out) if self.world.writes else nullcontext():
            self._run(facts)

    def _run(self, facts: dict[str, Any]) -> None:
        if self.device.type == "cpu" and self.recipe.runtime.precision == "bf16":
            warn_of_slow_bf16()
        if self.world.writes:
            for part in self.out.glob(".*.part.*"):  # a checkpoint during which the run was killed
                part.unlink()
            record_run(self.out, self.recipe, {**facts, "processes": self.world.size})
            trackers = open_trackers(self.recipe.runtime, self.out, name=self.recipe.name, step=self.step)
            self.metrics = MetricsLogger(self.out / METRICS_NAME, step=self.step, trackers=trackers)
        try:
            for epoch in range(self.step // self.steps, self.task.epochs):
                self.run_epoch(epoch)
                self.task.end_epoch(self, epoch)
                self.save_last()
        except RuntimeError as error:  # of CUDA a subclass, of the CPU's allocator not
            if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
                raise
            parts = 2 * self.recipe.runtime.accumulate
            raise OutOfMemory(
                f"out of memory on {self.device} at batch_size {self.recipe.batch_size}. Split each batch with "
                f"runtime.accumulate={parts}, or reduce batch_size or the size of the images."
            ) from error
        finally:
            if self.metrics is not None:
                self.metrics.close()

    def run_epoch(self, epoch: int) -> None:
        """Train from the next step to the end of `epoch`."""
        self.task.network.train()
        first, clock, runtime = self.step - epoch * self.steps, Clock(), self.recipe.runtime
        with progress_bar(shown=self.world.writes) as progress:
            title = f"epoch {epoch + 1}/{self.task.epochs}"
            bar = progress.add_task(title, total=self.steps, completed=first, note="")
            for batch in self.task.batches(epoch, first):
                clock.batch_loaded()
                parts = self.optimizer_step(batch_map(lambda tensor: tensor.to(self.device), batch))
                clock.step_done(self.recipe.batch_size)
                note = f"loss {parts['loss']:.3f}  {clock.rates()['faces_per_s']:.0f} images/s"
                progress.update(bar, advance=1, note=note)
                ends_epoch = self.step == (epoch + 1) * self.steps
                # a report needs at least one line, also of a short epoch
                if self.step % runtime.log_every_steps == 0 or (ends_epoch and self.steps < runtime.log_every_steps):
                    self.log({**parts, **clock.rates()})
                # the last step of an epoch is saved after its validation, which a resumed run would skip otherwise
                if self.step % runtime.checkpoint_every_steps == 0 and not ends_epoch:
                    self.save_last()
        if clock.faces:
            rates = clock.rates()
            self.log(rates)
            share = 100 * rates["data_wait_share"]
            logger.info("%.0f images/s, %.1f %% of the time waiting for data", rates["faces_per_s"], share)

    def optimizer_step(self, batch: Batch) -> dict[str, float]:
        """Train on one batch; returns its mean losses by name, and the learning rate."""
        self.scheduler.step_update(self.step)
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.task.prepare(batch, self.step)
        means = self.accumulate_gradients(batch)
        if not math.isfinite(means["loss"]):
            remedy = "Reduce optim.learning_rate" if self.step else "Check the initial weights"
            inspect = ", or inspect this batch: " + ", ".join(names) if (names := self.task.names(self.step)) else ""
            raise TrainingDiverged(f"step {self.step}: loss is {means['loss']}. {remedy}{inspect}")
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

    def accumulate_gradients(self, batch: Batch) -> dict[str, float]:
        """Accumulate the gradients of a batch in `runtime.accumulate` parts; returns its mean losses by name."""
        parts = self.recipe.runtime.accumulate
        means = torch.zeros((), device=self.device)
        losses: dict[str, Tensor] = {}
        for number in range(parts):
            part = batch_map(partial(_part, number=number, parts=parts), batch)
            share = len(part[0]) / len(batch[0])
            # the last backward pass of a step averages the gradients of the processes
            with nullcontext() if number == parts - 1 or self.world.size == 1 else self.forward.no_sync():
                losses = self.task.losses(self.forward, part)
                self.scaler.scale(losses["loss"] * share).backward()  # type: ignore[no-untyped-call]
            means = means + share * torch.stack([value.detach() for value in losses.values()])
        return dict(zip(losses, self.world.mean(means).tolist(), strict=True))

    def log(self, values: dict[str, Any]) -> None:
        """Add a line of metrics at the current step; only rank 0 writes."""
        if self.metrics is not None:
            self.metrics.add({"step": self.step, **values})

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
        """Load the newest intact checkpoint, if there is one, and set the state of the random numbers."""
        state = checkpoint.read_newest(self.out)
        if state is not None:
            self.task.network.load_state_dict(state["network"])
            self.task.load_state(state)
            self.optimizer.load_state_dict(state["optimizer"])
            if self.ema is not None:
                self.ema.module.load_state_dict(state["ema"])
            if "scaler" in state:
                self.scaler.load_state_dict(state["scaler"])
            self.step = state["step"]
            logger.info("resumed at step %d of %d", self.step, self.steps * self.task.epochs)
        ranks = [] if state is None else state.get("ranks", [state])
        if self.world.rank < len(ranks):
            own = ranks[self.world.rank]
            torch.set_rng_state(own["rng"])
            if own["cuda_rng"]:  # maybe of a machine with more GPUs
                torch.cuda.set_rng_state_all(own["cuda_rng"][: torch.cuda.device_count()])
        elif self.world.rank:  # each process has its own dropout
            torch.manual_seed(int(np.random.SeedSequence([self.recipe.seed, self.world.rank]).generate_state(1)[0]))


def _part(tensor: Tensor, *, number: int, parts: int) -> Tensor:
    return tensor.tensor_split(parts)[number]
