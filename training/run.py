"""A run while it trains: lock, exact resume, checkpoints, metrics, trackers, progress and speed.

training/train.py and training/detector/train.py have a loop each and share this. Order, augmentation and random numbers
depend only on the seed and the step, so a resumed run has the same losses as an uninterrupted one.
"""

import importlib
import json
import logging
import math
import re
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar

import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mien.data.atomic import write_atomic
from mien.data.errors import MienError
from mien.training import checkpoint
from mien.training.config import RecipeError, RunRecipe, RuntimeConfig
from mien.training.run_folder import METRICS_NAME, check_run, create_folder, read_facts, record_run, run_lock
from mien.training.runtime import Runtime

logger = logging.getLogger("mien.training")

BOARD_FOLDER: Final = "tensorboard"
_PRINT_EVERY_S: Final = 60.0
B = TypeVar("B")  # a NamedTuple of tensors of length B, or None


class Tracker(NamedTuple):
    """Functions that log the numbers of one step, and end the run."""

    add: Callable[[Mapping[str, float], int], None]
    close: Callable[[], None]


def open_trackers(runtime: RuntimeConfig, out: Path, *, name: str, step: int) -> list[Tracker]:
    """Open the trackers of a recipe; TensorBoard's events after `step` are dropped. Raises: RecipeError."""
    trackers: list[Tracker] = []
    if runtime.tensorboard:
        writer = _library("tensorboardX").SummaryWriter(str(out / BOARD_FOLDER), purge_step=step + 1)

        def add(values: Mapping[str, float], step: int) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, step)
            writer.flush()

        trackers.append(Tracker(add, writer.close))
    if runtime.wandb:  # resumed by its id; WANDB_MODE=offline keeps it local
        wandb = _library("wandb")
        started = re.sub(r"\D", "", read_facts(out).get("started", ""))  # another run can have the same folder name
        identity = f"{out.name}-{started}" if started else out.name
        run = wandb.init(project="mien", name=name, id=identity, dir=str(out), resume="allow")
        trackers.append(Tracker(lambda values, step: run.log(dict(values), step=step), run.finish))
    if runtime.mlflow:  # at MLFLOW_TRACKING_URI
        mlflow = _library("mlflow")
        mlflow.set_experiment("mien")
        mlflow.start_run(run_name=name)
        trackers.append(Tracker(lambda values, step: mlflow.log_metrics(dict(values), step=step), mlflow.end_run))
    return trackers


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise RecipeError(f"runtime.{name}: {name} is not installed; pip install {name}") from error


class TrainingDiverged(MienError):
    """A loss that is not finite."""


def drop_lines_after(step: int, path: Path) -> None:
    """Drop metrics after a step, which a resumed run will write again, and a truncated last line."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line + "\n")
        except json.JSONDecodeError:
            break
    write_atomic(path, "".join(kept))


class Clock:
    """Timer of an epoch: time spent waiting for batches, and speed."""

    def __init__(self) -> None:
        self.started = self.requested = time.perf_counter()
        self.waited_s, self.faces = 0.0, 0

    def batch_loaded(self) -> None:
        self.waited_s += time.perf_counter() - self.requested

    def step_done(self, faces: int) -> None:
        self.faces += faces
        self.requested = time.perf_counter()

    def rates(self) -> dict[str, float]:
        """Speed since the start, including waiting, and share of time spent waiting, for a line of metrics."""
        elapsed = max(time.perf_counter() - self.started, 1e-9)
        return {"faces_per_s": round(self.faces / elapsed, 1), "data_wait_share": round(self.waited_s / elapsed, 4)}


def warn_of_slow_bf16() -> None:
    """Log a warning if this processor multiplies matrices faster in fp32 than in bf16."""
    matrices = (torch.ones(1024, 1024, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    bf16_s, fp32_s = (min(timeit.repeat(partial(torch.mm, matrix, matrix), number=1, repeat=4)) for matrix in matrices)
    if bf16_s > fp32_s:
        times = bf16_s / fp32_s
        logger.warning("bf16 takes %.1f times as long as fp32 here: train with runtime.precision=fp32", times)


def progress_bar(*, shown: bool = True) -> Progress:
    """Progress bar with steps, remaining time and a note; hidden without a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), disable=not (shown and sys.stderr.isatty()))


class OutOfMemory(MienError):
    """A batch that does not fit in the memory of the device."""


def check_batch_size(recipe: RunRecipe, processes: int) -> None:
    """Check that processes and parts can share a batch. Raises: RecipeError."""
    if processes > 1 and recipe.batch_size % (2 * processes):
        raise RecipeError(
            f"batch_size {recipe.batch_size}: expected a multiple of {2 * processes} for {processes} processes"
        )
    if (least := 2 * processes * recipe.runtime.accumulate) > recipe.batch_size:
        raise RecipeError(
            f"batch_size {recipe.batch_size}: expected at least {least}, two samples for each part of each process"
        )


def parts_of(batch: B, count: int) -> Iterator[tuple[float, B]]:
    """Split a batch into `count` parts, each with its share of the batch."""
    tensors: Any = batch
    split = [None if tensor is None else tensor.tensor_split(count) for tensor in tensors]
    for number in range(count):
        part = tensors._make(None if pieces is None else pieces[number] for pieces in split)
        yield len(part[0]) / len(tensors[0]), part


def _with_accuracy(means: dict[str, float]) -> dict[str, float]:
    """Replace the shares `correct` and `labeled` of a batch by the accuracy of the labeled faces."""
    values = {name: value for name, value in means.items() if name not in ("correct", "labeled")}
    return values | ({"accuracy": means["correct"] / means["labeled"]} if means.get("labeled") else {})


class Run:
    """A run folder that this process trains in, as a context manager.

    Attributes:
        step: number of steps done.
        best_score, best_epoch: of `keep_best`; -inf and -1 before the first.
    """

    def __init__(  # noqa: PLR0913 (what a loop needs of its run)
        self,
        recipe: RunRecipe,
        out: Path,
        facts: Mapping[str, Any],
        state: Mapping[str, Any],
        *,
        runtime: Runtime,
        epochs: int,
        steps_per_epoch: int,
        sample_names: Callable[[int], list[str]] = lambda _step: [],
    ) -> None:
        """Prepare a run.

        Args:
            recipe, out: recipe and folder.
            facts: for `run.json`, see `record_run`.
            state: what checkpoints contain, by name: network, optimizer, ...
            runtime: device and processes.
            epochs, steps_per_epoch: length of the run.
            sample_names: names of the samples in the batch of a step, to find the cause of a loss that is not finite.
        """
        self.recipe, self.out, self.facts, self.stateful = recipe, out, dict(facts), dict(state)
        self.world, self.device = runtime.world, runtime.device
        self.epochs, self.steps_per_epoch, self.sample_names = epochs, steps_per_epoch, sample_names
        self.step, self.best_score, self.best_epoch = 0, -math.inf, -1
        self._trackers: list[Tracker] | None = None  # of the process that logs
        self._clock = Clock()
        self._note = ""
        self._printed_at = time.monotonic()
        self._loaded: Iterator[Any] | None = None
        self._names: tuple[str, ...] = ()
        self._sums: Tensor | None = None  # of the losses of this epoch
        self._diverged = torch.full((), -1, device=self.device)  # first step whose loss or gradient is not finite
        self._cleanup = ExitStack()

    @property
    def finished(self) -> bool:
        return self.step == self.steps_per_epoch * self.epochs

    def __enter__(self) -> Self:
        """Lock the folder, check that it has this recipe and this data, and resume from its newest checkpoint.

        Raises: RunError, CheckpointError.
        """
        with ExitStack() as cleanup:
            if self.world.is_main_process:
                create_folder(self.out)
                cleanup.enter_context(run_lock(self.out))
                check_run(self.out, self.recipe, self.facts)
            self._resume()
            if self.finished:
                logger.info("%s: finished", self.out)
            elif self.world.is_main_process:
                for part in self.out.glob(".*.part.*"):  # a checkpoint during which the run was killed
                    part.unlink()
                record_run(self.out, self.recipe, self.facts, device=self.device, processes=self.world.size)
                self._trackers = open_trackers(self.recipe.runtime, self.out, name=self.recipe.name, step=self.step)
                for tracker in self._trackers:
                    cleanup.callback(tracker.close)
                if (metrics := self.out / METRICS_NAME).exists():
                    drop_lines_after(self.step, metrics)
            if not self.finished and self.device.type == "cpu" and self.recipe.runtime.precision == "bf16":
                warn_of_slow_bf16()
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Finish and unlock. Raises: OutOfMemory, in place of the error of a device whose memory is full."""
        self._loaded = None  # ends the worker processes
        with self._cleanup:
            if error is None and self._trackers is not None:
                self.finish()
        # of CUDA a subclass, of the CPU's allocator not
        if isinstance(error, torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and "allocate memory" in str(error)
        ):
            raise OutOfMemory(
                f"out of memory on {self.device} at batch_size {self.recipe.batch_size}. Split each batch with "
                f"runtime.accumulate={2 * self.recipe.runtime.accumulate}, or reduce batch_size or the size of the "
                "images."
            ) from error

    def batches(self, dataset: Dataset[B]) -> Iterator[B]:
        """Yield the batches of this epoch that are left, on the device; `end_step` follows each.

        The worker processes stay until the run ends, and prepare the next epoch during validation.

        Args:
            dataset: map-style dataset of this process's part of the batches of the run.
        """
        if self._loaded is None:
            workers = self.recipe.runtime.workers
            loader = DataLoader(
                dataset,
                batch_size=None,
                sampler=range(self.step, self.steps_per_epoch * self.epochs),
                num_workers=workers,
                prefetch_factor=4 if workers else None,
                pin_memory=self.device.type == "cuda",
                # otherwise, the loader would use the global generator, which dropout uses and checkpoints save
                generator=torch.Generator().manual_seed(self.recipe.seed),
            )
            self._loaded = iter(loader)
        epoch, first = divmod(self.step, self.steps_per_epoch)
        self._clock = Clock()
        with progress_bar(shown=self.world.is_main_process) as progress:
            self._cleanup.callback(progress.stop)
            total = self.steps_per_epoch
            bar = progress.add_task(f"epoch {epoch + 1}/{self.epochs}", total=total, completed=first, note="")
            for loaded in islice(self._loaded, total - first):
                self._clock.batch_loaded()
                yield loaded._make(None if t is None else t.to(self.device, non_blocking=True) for t in loaded)
                progress.update(bar, advance=1, note=self._note)
        self._check_finite()
        rates = self._clock.rates()
        means = {} if self._sums is None else dict(zip(self._names, (self._sums / total).tolist(), strict=True))
        self._sums = None
        self.log({f"train_{name}": value for name, value in _with_accuracy(means).items()} | rates)
        share = 100 * rates["data_wait_share"]
        logger.info("%.0f images/s, %.1f %% of the time waiting for data", rates["faces_per_s"], share)

    def end_step(self, losses: Mapping[str, Tensor], *, grad_norm: Tensor, learning_rate: float) -> None:
        """Count a step, and log and save it where the recipe says so. Every process must call it.

        Reads values from the device for a logged step only, as each read waits for it.

        Args:
            losses: means over the batch, scalars; `loss` is the one that is minimized, `correct` and `labeled`, if any,
                are the shares of the batch that are predicted correctly and that have a label.
            grad_norm: norm of the gradients.
            learning_rate: largest learning rate.
        Raises: TrainingDiverged, at the next logged or saved step after a loss or a norm that is not finite.
        """
        means = self.world.mean(torch.stack(list(losses.values())))
        self._names = tuple(losses)
        self._sums = means if self._sums is None else self._sums + means
        is_finite = means[self._names.index("loss")].isfinite() & grad_norm.isfinite()
        self._diverged = torch.where(is_finite | (self._diverged >= 0), self._diverged, self.step)
        self.step += 1
        self._clock.step_done(self.recipe.batch_size)
        runtime, ends_epoch = self.recipe.runtime, self.step % self.steps_per_epoch == 0
        # a report needs at least one line, also of a short epoch
        if self.step % runtime.log_every_steps == 0 or (ends_epoch and self.steps_per_epoch < runtime.log_every_steps):
            self._check_finite()
            values = _with_accuracy(dict(zip(losses, means.tolist(), strict=True)))
            rates = self._clock.rates()
            self._note = f"loss {values['loss']:.3f}  {rates['faces_per_s']:.0f} images/s"
            self.log({**values, "lr": learning_rate, **rates})
            if not sys.stderr.isatty() and time.monotonic() - self._printed_at > _PRINT_EVERY_S:  # no progress bar
                self._printed_at, total = time.monotonic(), self.steps_per_epoch * self.epochs
                minutes = (total - self.step) * self.recipe.batch_size / max(rates["faces_per_s"], 1e-9) / 60
                logger.info("step %d of %d: %s, %.0f minutes left", self.step, total, self._note, minutes)
        # the last step of an epoch is saved after its validation, which a resumed run would skip otherwise
        if self.step % runtime.checkpoint_every_steps == 0 and not ends_epoch:
            self.save_last()

    def _check_finite(self) -> None:
        if (step := int(self._diverged)) >= 0:
            remedy = "Reduce optim.learning_rate" if step else "Check the initial weights"
            raise self.diverged(step, "loss or gradient is", remedy)

    def diverged(self, step: int, what: str, remedy: str = "Reduce optim.learning_rate") -> TrainingDiverged:
        """Error of a step whose loss, gradient or weights are not finite, with its samples."""
        inspect = ", or inspect this batch: " + ", ".join(names) if (names := self.sample_names(step)) else ""
        return TrainingDiverged(f"step {step}: {what} not finite. {remedy}{inspect}")

    def log(self, values: Mapping[str, Any]) -> None:
        """Add a line of metrics at the current step; only rank 0 writes."""
        if self._trackers is None:
            return
        with (self.out / METRICS_NAME).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self.step, **values}) + "\n")
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        for tracker in self._trackers:
            tracker.add(numbers, self.step)

    def keep_best(self, score: float, epoch: int, state: Mapping[str, Any]) -> None:
        """Save weights as `best.pt` if they are the best so far; only rank 0 writes."""
        if self.world.is_main_process and score > self.best_score:
            self.best_score, self.best_epoch = score, epoch
            checkpoint.save(self.out / checkpoint.BEST, dict(state))

    def save_last(self) -> None:
        """Save the complete state; every process must call it, and rank 0 writes."""
        self._check_finite()
        own: dict[str, Any] = {"rng": torch.get_rng_state(), "cuda_rng": torch.cuda.get_rng_state_all()}
        state: dict[str, Any] = {name: stateful.state_dict() for name, stateful in self.stateful.items()}
        state |= own | self._position() | {"sums": self._sums, "names": list(self._names)}
        if self.world.size > 1:
            state["ranks"] = self.world.gather(own)
        if self.world.is_main_process:
            checkpoint.save_last(self.out, state)

    def _position(self) -> dict[str, Any]:
        return {"step": self.step, "best": self.best_score, "best_epoch": self.best_epoch}

    def finish(self) -> None:
        """Leave only the position in the checkpoint: the state of the optimizer is of no use any more."""
        checkpoint.save(self.out / checkpoint.LAST, self._position())
        (self.out / checkpoint.PREVIOUS).unlink(missing_ok=True)

    def _resume(self) -> None:
        """Load the newest intact checkpoint, if there is one, and set the state of the random numbers."""
        state = checkpoint.read_newest(self.out)
        if state is not None:
            self.step, self.best_score, self.best_epoch = (
                state["step"], state.get("best", -math.inf), state.get("best_epoch", -1)
            )  # fmt: skip
            if self.finished:
                return
            for name, stateful in self.stateful.items():
                if name in state:  # no loss scaler, if the precision was another one
                    stateful.load_state_dict(state[name])
            if state.get("sums") is not None:
                self._sums, self._names = state["sums"].to(self.device), tuple(state["names"])
            logger.info("resumed at step %d of %d", self.step, self.steps_per_epoch * self.epochs)
        ranks = [] if state is None else state.get("ranks", [state])
        if self.world.rank < len(ranks):
            own = ranks[self.world.rank]
            torch.set_rng_state(own["rng"])
            if own["cuda_rng"]:  # maybe of a machine with more GPUs
                torch.cuda.set_rng_state_all(own["cuda_rng"][: torch.cuda.device_count()])
        elif self.world.rank:  # each process has its own dropout
            torch.manual_seed(int(np.random.SeedSequence([self.recipe.seed, self.world.rank]).generate_state(1)[0]))
