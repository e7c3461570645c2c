"""A run while it trains: lock, exact resume, checkpoints, metrics, progress and speed.

Order, augmentation and random numbers depend only on the seed and the step, so a resumed run has the same losses as an
uninterrupted one.
"""

import json
import logging
import math
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mien.data.atomic import write_atomic
from mien.data.errors import MienError
from mien.training import checkpoint
from mien.training.config import Recipe, RecipeError
from mien.training.run_folder import METRICS_NAME, check_run, create_folder, record_run, run_lock

logger = logging.getLogger("mien.training")

BOARD_FOLDER: Final = "tensorboard"
_PRINT_EVERY_S: Final = 60.0
B = TypeVar("B")  # a NamedTuple of tensors


def open_board(out: Path, *, step: int) -> Any:
    """Open TensorBoard's events of a run; those after `step` are dropped. Raises: RecipeError."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise RecipeError("runtime.tensorboard: not installed; pip install tensorboardX") from error
    return SummaryWriter(str(out / BOARD_FOLDER), purge_step=step + 1)


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


def progress_bar() -> Progress:
    """Progress bar with steps, remaining time and a note; hidden without a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[note]}"), disable=not sys.stderr.isatty())


class OutOfMemory(MienError):
    """A batch that does not fit in the memory of the device."""


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

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        facts: Mapping[str, Any],
        state: Mapping[str, Any],
        *,
        device: torch.device,
        steps_per_epoch: int,
        sample_names: Callable[[int], list[str]],
    ) -> None:
        """Prepare a run.

        Args:
            recipe, out: recipe and folder.
            facts: for `run.json`, see `record_run`.
            state: what checkpoints contain, by name: network, optimizer, ...
            sample_names: names of the samples in the batch of a step, to find the cause of a loss that is not finite.
        """
        self.recipe, self.out, self.facts, self.stateful = recipe, out, dict(facts), dict(state)
        self.device, self.epochs, self.steps_per_epoch = device, recipe.epochs, steps_per_epoch
        self.sample_names = sample_names
        self.step, self.best_score, self.best_epoch = 0, -math.inf, -1
        self._trains = False
        self._board: Any = None  # TensorBoard's writer
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
            create_folder(self.out)
            cleanup.enter_context(run_lock(self.out))
            check_run(self.out, self.recipe, self.facts)
            self._resume()
            self._trains = not self.finished
            if not self._trains:
                logger.info("%s: finished", self.out)
            else:
                for part in self.out.glob(".*.part.*"):  # a checkpoint during which the run was killed
                    part.unlink()
                record_run(self.out, self.recipe, self.facts, device=self.device)
                if self.recipe.runtime.tensorboard:
                    self._board = open_board(self.out, step=self.step)
                    cleanup.callback(self._board.close)
                if (metrics := self.out / METRICS_NAME).exists():
                    drop_lines_after(self.step, metrics)
                if self.device.type == "cpu" and self.recipe.runtime.precision == "bf16":
                    warn_of_slow_bf16()
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Finish and unlock. Raises: OutOfMemory, in place of the error of a device whose memory is full."""
        self._loaded = None  # ends the worker processes
        with self._cleanup:
            if error is None and self._trains:
                self.finish()
        # of CUDA a subclass, of the CPU's allocator not
        if isinstance(error, torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and "allocate memory" in str(error)
        ):
            raise OutOfMemory(
                f"out of memory on {self.device} at batch_size {self.recipe.batch_size}. Reduce batch_size or "
                "model.img_size."
            ) from error

    def batches(self, dataset: Dataset[B]) -> Iterator[B]:
        """Yield the batches of this epoch that are left, on the device; `end_step` follows each.

        The worker processes stay until the run ends, and prepare the next epoch during validation.

        Args:
            dataset: map-style dataset of the batches of the run.
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
        with progress_bar() as progress:
            self._cleanup.callback(progress.stop)
            total = self.steps_per_epoch
            bar = progress.add_task(f"epoch {epoch + 1}/{self.epochs}", total=total, completed=first, note="")
            for loaded in islice(self._loaded, total - first):
                self._clock.batch_loaded()
                yield loaded._make(tensor.to(self.device, non_blocking=True) for tensor in loaded)
                progress.update(bar, advance=1, note=self._note)
        self._check_finite()
        rates = self._clock.rates()
        means = {} if self._sums is None else dict(zip(self._names, (self._sums / total).tolist(), strict=True))
        self._sums = None
        self.log({f"train_{name}": value for name, value in _with_accuracy(means).items()} | rates)
        share = 100 * rates["data_wait_share"]
        logger.info("%.0f images/s, %.1f %% of the time waiting for data", rates["faces_per_s"], share)

    def end_step(self, losses: Mapping[str, Tensor], *, grad_norm: Tensor, learning_rate: float) -> None:
        """Count a step, and log and save it where the recipe says so.

        Reads values from the device for a logged step only, as each read waits for it.

        Args:
            losses: means over the batch, scalars; `loss` is the one that is minimized, `correct` and `labeled`, if any,
                are the shares of the batch that are predicted correctly and that have a label.
            grad_norm: norm of the gradients.
            learning_rate: largest learning rate.
        Raises: TrainingDiverged, at the next logged or saved step after a loss or a norm that is not finite.
        """
        means = torch.stack([loss.detach() for loss in losses.values()])
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
        """Add a line of metrics at the current step."""
        with (self.out / METRICS_NAME).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self.step, **values}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, self.step)
            self._board.flush()

    def keep_best(self, score: float, epoch: int, state: Mapping[str, Any]) -> None:
        """Save weights as `best.pt` if they are the best so far."""
        if score > self.best_score:
            self.best_score, self.best_epoch = score, epoch
            checkpoint.save(self.out / checkpoint.BEST, dict(state))

    def save_last(self) -> None:
        """Save the complete state."""
        self._check_finite()
        state: dict[str, Any] = {name: stateful.state_dict() for name, stateful in self.stateful.items()}
        state |= {"rng": torch.get_rng_state(), "cuda_rng": torch.cuda.get_rng_state_all()}
        state |= self._position() | {"sums": self._sums, "names": list(self._names)}
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
        if state is None:
            return
        self.step, self.best_score, self.best_epoch = state["step"], state["best"], state["best_epoch"]
        if self.finished:
            return
        for name, stateful in self.stateful.items():
            if name in state:  # no loss scaler, if the precision was another one
                stateful.load_state_dict(state[name])
        if state["sums"] is not None:
            self._sums, self._names = state["sums"].to(self.device), tuple(state["names"])
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"]:  # maybe of a machine with more GPUs
            torch.cuda.set_rng_state_all(state["cuda_rng"][: torch.cuda.device_count()])
        logger.info("resumed at step %d of %d", self.step, self.steps_per_epoch * self.epochs)
