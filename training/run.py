"""Run folders: lock, recipe, run.json, metrics, one atomic checkpoint, and exact resume.

recipe.yaml, run.json   all options; commit, versions, hardware, and the data, teachers and initial weights by hash
metrics.jsonl           losses, learning rate and speed, and the scores on validation after each epoch
last.pt                 the complete state of the last checkpoint; of a finished run only the position
best.pt                 the weights of the best epoch
"""

import json
import logging
import math
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import cv2
import filelock
import torch
import yaml
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mien.data.atomic import write_atomic
from mien.data.contract import contract_id
from mien.data.errors import MienError
from mien.training.config import Recipe, RecipeError
from mien.training.data import FaceBatch, FaceBatches, seed_of
from mien.training.weights import BEST, LAST, RECIPE, RUN_INFO, RunError, load, read_run, read_run_info, save

logger = logging.getLogger("mien.training")

METRICS: Final = "metrics.jsonl"
_PRINT_EVERY_S: Final = 60.0
_NO_DIFFERENCE: Final = ("runtime.", "data.cache_dir", "data.allow_missing_classes")  # nor the root of a data set


class TrainingDiverged(MienError):
    """A loss or gradient that is not finite."""


class OutOfMemory(MienError):
    """A batch that does not fit in the memory of the device."""


class Run:
    """The folder of a run that this process trains in, as a context manager.

    Attributes:
        step: number of steps done.
        best_score, best_epoch: of the best epoch; -inf and -1 before the first.
    """

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        run_info: Mapping[str, Any],
        state: Mapping[str, Any],
        *,
        device: torch.device,
        batches: FaceBatches,
    ) -> None:
        """Prepare a run.

        Args:
            run_info: for run.json; the hashes of data and weights must not change until the run is finished.
            state: what checkpoints contain, by name: network, optimizer, ...
            batches: of all steps of the run.
        """
        self.recipe, self.out, self.run_info, self.state, self.device = recipe, out, dict(run_info), dict(state), device
        self._batches, self.steps_per_epoch = batches, batches.steps_per_epoch
        self.steps = self.steps_per_epoch * recipe.epochs
        self.step, self.best_score, self.best_epoch = 0, -math.inf, -1
        self._sums: dict[str, Tensor] = {}  # The losses of this epoch are added here.
        self._diverged = torch.full((), -1, device=device)  # first step whose loss or gradient is not finite
        self._loaded: Iterator[Any] | None = None
        self._board: Any = None  # TensorBoard's writer
        self._started = self._requested = self._printed = time.perf_counter()
        self._waited_s, self._faces, self._note = 0.0, 0, ""
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        """Lock the folder, check that it has this recipe and this data, and resume. Raises: RunError, RecipeError."""
        with ExitStack() as cleanup:
            try:
                self.out.mkdir(parents=True, exist_ok=True)
                cleanup.enter_context(filelock.FileLock(self.out / ".lock", blocking=False))
            except filelock.Timeout as error:
                raise RunError(
                    f"{self.out}: another process trains in this folder. Wait until it ends, or choose another --out."
                ) from error
            except OSError as error:
                raise RunError(
                    f"{self.out}: cannot be created ({error.strerror}). Choose another --out (or --runs)."
                ) from error
            run_info = self._checked_run_info()
            self._resume()
            if self.step < self.steps:
                self._record(run_info)
                if self.recipe.runtime.tensorboard:
                    self._board = _open_board(self.out / "tensorboard", self.step)
                    cleanup.callback(self._board.close)
            else:
                logger.info("%s: finished", self.out)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Unlock. Raises: OutOfMemory, in place of the error of a device whose memory is full."""
        self._loaded = None  # ends the worker processes
        self._cleanup.close()
        # CUDA raises a subclass, the CPU's allocator does not.
        if isinstance(error, torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError) and "allocate memory" in str(error)
        ):
            raise OutOfMemory(
                f"out of memory on {self.device} at batch_size {self.recipe.batch_size}. Reduce batch_size or "
                "model.img_size."
            ) from error

    def epochs(self) -> range:
        """Epochs that are left."""
        return range(self.step // self.steps_per_epoch, self.recipe.epochs)

    def batches(self) -> Iterator[FaceBatch]:
        """Yield the batches of this epoch that are left, on the device; `step_done` follows each.

        The worker processes stay until the run ends, and prepare the next epoch during validation.
        """
        if self._loaded is None:
            workers = self.recipe.runtime.workers
            loader = DataLoader(
                self._batches,
                batch_size=None,
                sampler=range(self.step, self.steps),
                num_workers=workers,
                prefetch_factor=4 if workers else None,
                pin_memory=self.device.type == "cuda",
            )
            self._loaded = iter(loader)
        epoch, first = divmod(self.step, self.steps_per_epoch)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, TextColumn("{task.fields[note]}"), disable=not sys.stderr.isatty()) as progress:
            self._cleanup.callback(progress.stop)
            title = f"epoch {epoch + 1}/{self.recipe.epochs}"
            bar = progress.add_task(title, total=self.steps_per_epoch, completed=first, note="")
            self._started = self._requested = time.perf_counter()
            self._waited_s, self._faces = 0.0, 0
            for loaded in islice(self._loaded, self.steps_per_epoch - first):
                self._waited_s += time.perf_counter() - self._requested
                # Dropout and mixing draw from the global generators, nothing else does.
                position = self.step % self.steps_per_epoch * self.recipe.batch_size
                torch.manual_seed(seed_of(self.recipe.seed, epoch, position))
                yield loaded._make(tensor.to(self.device, non_blocking=True) for tensor in loaded)
                progress.update(bar, advance=1, note=self._note)
        self._check_finite()
        means = {name: float(total) / self.steps_per_epoch for name, total in self._sums.items()}
        self._sums, rates = {}, self._rates()
        self._log({f"train_{name}": value for name, value in _with_accuracy(means).items()} | rates)
        logger.info(
            "%.0f images/s, %.1f %% of the time waiting for data", rates["faces_per_s"], 100 * rates["data_wait_share"]
        )

    def step_done(self, parts: Mapping[str, Tensor], *, grad_norm: Tensor, learning_rate: float) -> None:
        """Count a step, and log and save it where the recipe says so.

        Reads values from the device for a logged step only, as each read waits for it.

        Args:
            parts: means over the batch, scalars, as `mien.training.distill.losses` returns them.
        Raises: TrainingDiverged, at the next logged or saved step after a loss or a norm that is not finite.
        """
        values = torch.stack([value.detach() for value in parts.values()])
        for name, value in zip(parts, values, strict=True):
            self._sums[name] = self._sums.get(name, 0.0) + value
        is_finite = parts["loss"].detach().isfinite() & grad_norm.isfinite()
        self._diverged = torch.where(is_finite | (self._diverged >= 0), self._diverged, self.step)
        self.step += 1
        self._faces += self.recipe.batch_size
        self._requested = time.perf_counter()
        runtime, ends_epoch = self.recipe.runtime, self.step % self.steps_per_epoch == 0
        # A short epoch has at least one line, too.
        if self.step % runtime.log_every_steps == 0 or (ends_epoch and self.steps_per_epoch < runtime.log_every_steps):
            self._check_finite()
            logged, rates = _with_accuracy(dict(zip(parts, values.tolist(), strict=True))), self._rates()
            self._note = f"loss {logged['loss']:.3f}  {rates['faces_per_s']:.0f} images/s"
            self._log({**logged, "learning_rate": learning_rate, **rates})
            if not sys.stderr.isatty() and self._requested - self._printed > _PRINT_EVERY_S:  # no progress bar
                self._printed = self._requested
                minutes = (self.steps - self.step) * self.recipe.batch_size / max(rates["faces_per_s"], 1e-9) / 60
                logger.info("step %d of %d: %s, %.0f minutes left", self.step, self.steps, self._note, minutes)
        # the last step of an epoch is saved after its validation, which a resumed run would skip otherwise
        if self.step % runtime.checkpoint_every_steps == 0 and not ends_epoch:
            self._save()

    def epoch_done(self, network: nn.Module, score: Mapping[str, float], labels: tuple[str, ...]) -> None:
        """Log the scores of an epoch, and save the weights if they are the best so far, and the state.

        Args:
            score: values of `recipe.select` on validation; empty without validation.
        """
        epoch, select, head = self.step // self.steps_per_epoch - 1, self.recipe.select, self.recipe.distillation.head
        if score:
            logger.info(
                "epoch %d: validation accuracy %.2f %%, mean class %.2f %% (%s head)",
                epoch + 1, 100 * score["accuracy"], 100 * score["mean_class_accuracy"], head,
            )  # fmt: skip
        self._log({"epoch": epoch, "head": head, **{f"valid_{name}": value for name, value in score.items()}})
        value = score.get(select, epoch) * (-1 if select == "negative_log_likelihood" else 1)
        if value > self.best_score:
            self.best_score, self.best_epoch = value, epoch
            about = {"head": head, "epoch": epoch, "labels": list(labels), "contract_id": contract_id()}
            save(self.out / BEST, {"weights": network.state_dict(), **score, **about})
        self._save()

    def _check_finite(self) -> None:
        if (step := int(self._diverged)) >= 0:
            remedy = "Reduce optim.learning_rate" if step else "Check the initial weights"
            keys = ", ".join(self._batches.keys(step))
            raise TrainingDiverged(
                f"step {step}: loss or gradient is not finite. {remedy}, or inspect this batch: {keys}"
            )

    def _rates(self) -> dict[str, float]:
        """Speed in this epoch, including waiting, and the share of the time spent waiting for batches."""
        elapsed = max(time.perf_counter() - self._started, 1e-9)
        return {"faces_per_s": round(self._faces / elapsed, 1), "data_wait_share": round(self._waited_s / elapsed, 4)}

    def _log(self, values: Mapping[str, Any]) -> None:
        with (self.out / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self.step, **values}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, self.step)
            self._board.flush()

    def _save(self) -> None:
        self._check_finite()
        state: dict[str, Any] = {}
        if self.step < self.steps:  # The state of a finished run is of no use any more.
            state = {name: stateful.state_dict() for name, stateful in self.state.items()} | {"sums": self._sums}
        position = {"step": self.step, "best_score": self.best_score, "best_epoch": self.best_epoch}
        save(self.out / LAST, state | position)

    def _resume(self) -> None:
        """Continue at the checkpoint, if there is one, and drop what was logged after it."""
        if not (self.out / LAST).exists():
            return
        state = load(self.out / LAST)
        self.step, self.best_score, self.best_epoch = state["step"], state["best_score"], state["best_epoch"]
        if self.step < self.steps:
            for name, stateful in self.state.items():
                if name in state:  # no loss scaler, if the precision was another one
                    stateful.load_state_dict(state[name])
            self._sums = {name: value.to(self.device) for name, value in state["sums"].items()}
            logger.info("resumed at step %d of %d", self.step, self.steps)

    def _checked_run_info(self) -> dict[str, Any] | None:
        """Read run.json of a run to resume, if there is one. Raises: RunError, unless recipe and data are the same."""
        other = "choose another --out (or --runs)"
        if (self.out / RECIPE).exists():
            before, after = (_flat(recipe.model_dump(mode="json")) for recipe in (read_run(self.out), self.recipe))
            changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
            changed = [key for key in changed if not (key.startswith(_NO_DIFFERENCE) or key.endswith(".root"))]
            if changed:
                listed = ", ".join(f"{key} {before.get(key)}, now {after.get(key)}" for key in changed)
                raise RunError(f"{self.out} contains a run of another recipe ({listed}): {other}, or remove it")
        if not ((self.out / LAST).exists() and (self.out / RUN_INFO).exists()):
            return None
        started = read_run_info(self.out)
        data, before = self.run_info["data"], started["data"]
        changed = sorted(name for name in before.keys() | data.keys() if before.get(name) != data.get(name))
        # A resumed run does not read its initial weights again.
        weights = self.run_info["weights_from"].items()
        changed += sorted(name for name, sha256 in weights if started["weights_from"].get(name, sha256) != sha256)
        changed += ["the crop contract"] if started["contract_id"] != contract_id() else []
        if changed:
            raise RunError(
                f"{self.out}: {', '.join(changed)} changed since the run started. Restore it to resume, or {other} to "
                "train with the current data and teachers."
            )
        return started

    def _record(self, started: dict[str, Any] | None) -> None:
        """Write recipe and run.json; of a resumed run, append when and where. Drop what a kill left half written."""
        here = {"started": datetime.now(UTC).isoformat(), "commit": commit(), **environment()}
        here["device"] = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else here["cpu"]
        run_info = {"contract_id": contract_id(), **here, **self.run_info}
        if started is not None:
            run_info = started | {"resumed": [*started.get("resumed", []), here]}
        write_atomic(self.out / RECIPE, yaml.safe_dump(self.recipe.model_dump(mode="json"), sort_keys=False))
        write_atomic(self.out / RUN_INFO, json.dumps(run_info, indent=2) + "\n")
        for part in self.out.glob(".*.part.*"):
            part.unlink()
        if (metrics := self.out / METRICS).exists():
            kept = []
            for line in metrics.read_text(encoding="utf-8").splitlines():
                with suppress(json.JSONDecodeError):
                    kept += [line + "\n"] if json.loads(line)["step"] <= self.step else []
            write_atomic(metrics, "".join(kept))


def _open_board(folder: Path, step: int) -> Any:
    """Open TensorBoard's events of a run; those after `step` are dropped. Raises: RecipeError."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise RecipeError("runtime.tensorboard: not installed; pip install tensorboardX") from error
    return SummaryWriter(str(folder), purge_step=step + 1)


def _with_accuracy(means: dict[str, float]) -> dict[str, float]:
    """Replace the shares `correct` and `labeled` of a batch by the accuracy of the labeled faces."""
    values = {name: value for name, value in means.items() if name not in ("correct", "labeled")}
    return values | ({"accuracy": means["correct"] / means["labeled"]} if means.get("labeled") else {})


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    """Values by dotted key."""
    if not isinstance(value, dict | list):
        return {key: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    parts = [_flat(item, f"{key}.{name}" if key else str(name)) for name, item in items]
    return {name: item for part in parts for name, item in part.items()}


def commit() -> str:
    """Commit of the project, with `+` if there are local changes; `unknown` outside of a checkout."""
    here = Path(__file__).resolve()

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603 (fixed)

    try:
        git("ls-files", "--error-unmatch", here.name)  # fails if installed below the checkout of another project
        head = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--", ":/data", ":/models/*.py", ":/training")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def environment() -> dict[str, Any]:
    """Versions and processor."""
    cpu = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):  # Linux names it
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        cpu = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    libraries = {name: version(name) for name in ("torch", "timm", "albumentations", "numpy")}
    return {
        "python": platform.python_version(),
        "libraries": libraries | {"opencv": cv2.__version__},
        "cpu": cpu,
        "threads": torch.get_num_threads(),
    }
