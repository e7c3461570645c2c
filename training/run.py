"""Run folders: lock, recipe, run.json, metrics, one atomic checkpoint, and exact resume.

recipe.yaml, run.json   all options; commit, versions, device, and the data, teachers and initial weights by hash
metrics.jsonl           losses, learning rate and speed, and the scores on validation after each epoch
last.pt                 the complete state of the last checkpoint; of a finished run only the position
best.pt                 the weights of the best epoch
"""

import io
import json
import logging
import math
import pickle
import platform
import subprocess
import time
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import filelock
import torch
import yaml
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mien.data.atomic import write_atomic
from mien.data.contract import contract_id
from mien.data.errors import MienError
from mien.models.backbones import published_terms
from mien.models.manifest import MANIFEST_NAME, load_artifact, read_report, sha256_of
from mien.training.config import LOCAL, Recipe, read_as
from mien.training.data import FaceBatch, FaceBatches, seed_of

logger = logging.getLogger("mien.training")

RECIPE: Final = "recipe.yaml"
RUN_INFO: Final = "run.json"
METRICS: Final = "metrics.jsonl"
LAST: Final = "last.pt"
BEST: Final = "best.pt"
_PRINT_EVERY_S: Final = 60.0
_ROOT: Final = Path(__file__).resolve().parents[1]


class RunError(MienError):
    """A run folder that is missing, damaged, in use, or of another recipe."""


class TrainingDiverged(MienError):
    """A loss or gradient that is not finite."""


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically. Raises: RunError."""
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    try:
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        raise RunError(f"{path}: not written ({error.strerror}); the checkpoint before it is unchanged") from error


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Raises: RunError, if it is missing or damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch does not compare checksums.
        if damaged is not None:
            raise RunError(f"{path}: damaged at {damaged}")
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, zipfile.BadZipFile, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        raise RunError(f"{path}: cannot be read ({error}). Restore it, or train again.") from error
    return state


def read_run_info(folder: Path) -> dict[str, Any]:
    """Return what run.json records: commit, environment, hashes of data and weights. Raises: RunError."""
    try:
        run_info: dict[str, Any] = json.loads((folder / RUN_INFO).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{folder}: {RUN_INFO} is damaged ({error}). Restore it, or train again.") from error
    return run_info


class Run:
    """A run that this process trains; `open_run` opens it.

    Attributes:
        step: number of steps done.
        best_score, best_epoch: of the best epoch; -inf and -1 before the first.
    """

    def __init__(
        self, recipe: Recipe, out: Path, state: Mapping[str, Any], *, device: torch.device, batches: FaceBatches
    ) -> None:
        self.recipe, self.out, self.state, self.device = recipe, out, state, device
        self._batches, self.steps_per_epoch = batches, batches.steps_per_epoch
        self.steps = self.steps_per_epoch * recipe.epochs
        self.step, self.best_score, self.best_epoch = 0, -math.inf, -1
        self._sums = torch.zeros((), device=device)  # of the losses of this epoch
        self._diverged = torch.full((), -1, device=device)  # first step whose loss or gradient is not finite
        self._loaded: Iterator[Any] | None = None
        self._started, self._printed = time.perf_counter(), -math.inf
        self._first = 0  # step of this epoch with which this process began

    def epochs(self) -> range:
        """Epochs that are left."""
        return range(self.step // self.steps_per_epoch, self.recipe.epochs)

    def batches(self) -> Iterator[FaceBatch]:
        """Yield the batches of this epoch that are left, on the device; `step_done` follows each.

        The worker processes stay until the run ends, and prepare the next epoch during validation.
        """
        if self._loaded is None:
            workers, remaining = self.recipe.runtime.workers, range(self.step, self.steps)
            pinned = self.device.type == "cuda"
            self._loaded = iter(
                DataLoader(self._batches, batch_size=None, sampler=remaining, num_workers=workers, pin_memory=pinned)
            )
        epoch = self.step // self.steps_per_epoch
        self._started, self._first = time.perf_counter(), self.step
        for step in range(self.step, (epoch + 1) * self.steps_per_epoch):
            # Dropout and mixing draw from the global generators, nothing else does.
            position = step % self.steps_per_epoch * self.recipe.batch_size
            torch.manual_seed(seed_of(self.recipe.seed, epoch, position))
            yield FaceBatch._make(tensor.to(self.device, non_blocking=True) for tensor in next(self._loaded))

    def step_done(self, parts: Mapping[str, Tensor], *, grad_norm: Tensor, learning_rate: float) -> None:
        """Count a step, and log and save it where the recipe says so; the last step of an epoch also logs its means.

        Reads values from the device for a logged step only, as each read waits for it.

        Args:
            parts: means over the batch, scalars, as `losses` returns them.
        Raises: TrainingDiverged, at the next logged or saved step after a loss or a norm that is not finite.
        """
        values = torch.stack([value.detach() for value in parts.values()])
        self._sums = self._sums + values
        is_finite = parts["loss"].detach().isfinite() & grad_norm.isfinite()
        self._diverged = torch.where(is_finite | (self._diverged >= 0), self._diverged, self.step)
        self.step += 1
        runtime, ends_epoch = self.recipe.runtime, self.step % self.steps_per_epoch == 0
        if self.step % runtime.log_every_steps == 0 or ends_epoch:
            self._check_finite()
            elapsed_s, faces = time.perf_counter() - self._started, (self.step - self._first) * self.recipe.batch_size
            line = dict(zip(parts, values.tolist(), strict=True)) | {"learning_rate": learning_rate}
            line["faces_per_s"] = round(faces / elapsed_s, 1)  # including the time spent waiting for batches
            if ends_epoch:
                means = [total / self.steps_per_epoch for total in self._sums.tolist()]
                line |= {f"train_{name}": mean for name, mean in zip(parts, means, strict=True)}
                self._sums = torch.zeros_like(self._sums)
            self._log(line)
            if time.perf_counter() - self._printed > _PRINT_EVERY_S:
                self._printed = time.perf_counter()
                logger.info(
                    "step %d of %d: loss %.3f, %.0f images/s, %.0f minutes left",
                    self.step, self.steps, line["loss"], line["faces_per_s"],
                    (self.steps - self.step) * self.recipe.batch_size / line["faces_per_s"] / 60,
                )  # fmt: skip
        # The last step of an epoch is saved after its validation, which a resumed run would skip otherwise.
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
        self._log({"epoch": epoch, **{f"valid_{name}": value for name, value in score.items()}})
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

    def _log(self, values: Mapping[str, Any]) -> None:
        with (self.out / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": self.step, **values}) + "\n")

    def _save(self) -> None:
        self._check_finite()
        state: dict[str, Any] = {}
        if self.step < self.steps:  # The state of a finished run is of no use any more.
            state = {name: stateful.state_dict() for name, stateful in self.state.items()} | {"sums": self._sums}
        position = {"step": self.step, "best_score": self.best_score, "best_epoch": self.best_epoch}
        save(self.out / LAST, state | position | {"metrics_bytes": (self.out / METRICS).stat().st_size})

    def resume(self) -> None:
        """Continue at the checkpoint, and drop the metrics of later steps."""
        state = load(self.out / LAST)
        self.step, self.best_score, self.best_epoch = state["step"], state["best_score"], state["best_epoch"]
        if self.step < self.steps:
            for name, stateful in self.state.items():
                if state[name]:  # no loss scaler, if the precision was another one
                    stateful.load_state_dict(state[name])
            self._sums = state["sums"].to(self.device)
            with (self.out / METRICS).open("a") as file:
                file.truncate(min(file.tell(), state["metrics_bytes"]))
        logger.info("%s: %d of %d steps are done", self.out, self.step, self.steps)


@contextmanager
def open_run(
    recipe: Recipe,
    out: Path,
    run_info: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    device: torch.device,
    batches: FaceBatches,
) -> Iterator[Run]:
    """Lock a folder, check that it has this recipe and this data, and resume.

    Args:
        run_info: for run.json; the hashes of data and weights must not change until the run is finished.
        state: what checkpoints contain, by name: network, optimizer, ...
        batches: of all steps of the run.
    Raises: RunError, RecipeError.
    """
    out.mkdir(parents=True, exist_ok=True)
    run = Run(recipe, out, state, device=device, batches=batches)
    run_info = {"contract_id": contract_id(), **_environment(device), **run_info}
    try:
        with filelock.FileLock(out / ".lock", blocking=False):
            if (out / LAST).exists() or (out / BEST).exists():
                _check_unchanged(recipe, run_info, out)
            if (out / LAST).exists():
                run.resume()
            else:
                (out / METRICS).write_bytes(b"")
            if run.step < run.steps:
                write_atomic(out / RECIPE, yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False))
                write_atomic(out / RUN_INFO, json.dumps(run_info, indent=2) + "\n")
                for part in out.glob(".*.part.*"):  # of a checkpoint that was not written to its end
                    part.unlink()
            yield run
    except filelock.Timeout as error:
        raise RunError(
            f"{out}: another process trains in this folder. Wait until it ends, or choose another --out."
        ) from error
    except torch.OutOfMemoryError as error:
        raise RunError(
            f"out of memory on {device} at batch_size {recipe.batch_size}. Reduce batch_size or model.img_size."
        ) from error


def _check_unchanged(recipe: Recipe, run_info: Mapping[str, Any], out: Path) -> None:
    """Raises: RunError, if the run in a folder is of another recipe, or started with other data, weights or crops."""
    started, recorded_recipe = read_run_info(out), read_as(Recipe, out / RECIPE)
    before, after = (
        _flat(each.model_dump(mode="json", exclude=LOCAL)) | facts["data"] | facts["weights_from"]
        | {"the crop contract": facts["contract_id"]}
        for each, facts in ((recorded_recipe, started), (recipe, run_info))
    )  # fmt: skip
    if changed := [key for key in before | after if before.get(key) != after.get(key)]:
        listed = ", ".join(f"{key} {before.get(key)}, now {after.get(key)}" for key in changed)
        raise RunError(
            f"{out} contains a run of another recipe or other data ({listed}). Restore these to resume, or choose "
            "another --out (or --runs)."
        )


def _flat(value: Any, key: str = "") -> dict[str, Any]:
    """Values by dotted key."""
    if not isinstance(value, dict | list):
        return {key: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    parts = [_flat(item, f"{key}.{name}" if key else str(name)) for name, item in items]
    return {name: item for part in parts for name, item in part.items()}


def _environment(device: torch.device) -> dict[str, Any]:
    """When, with which commit (`+`: with local changes; `unknown` outside of a checkout) and versions, and where."""
    commit, cpu = "", f"{torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}"
    if (_ROOT / ".git").exists():  # An installation may be below the checkout of another project.
        describe = ("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+")
        with suppress(OSError):
            git = subprocess.run(["git", "-C", str(_ROOT), *describe], capture_output=True, text=True, check=False)  # noqa: S603, S607
            commit = git.stdout.strip()
    return {
        "started": datetime.now(UTC).isoformat(),
        "commit": commit or "unknown",
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in ("torch", "timm", "albumentations", "numpy", "opencv-python")},
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
    }


def provenance(recipe: Recipe, sources: Mapping[str, str]) -> dict[str, Any]:
    """Collect the provenance for `run.json` and the manifest.

    Args:
        sources: index hash of each training split, by kind/split.
    Returns: `learned_from`, hashes by kind/split, including those of teachers and initial weights, with the name of
        these where a split has other faces; `weights_from`, hashes of weights by name; `weight_terms`, publisher and
        license of third-party weights by name.
    Raises: RunError, ArtifactError, if a folder has no weights.
    """
    learned, weights, terms, model = dict(sources), dict[str, str](), dict[str, str](), recipe.model
    if model.pretrained:
        terms[f"{model.family}/{model.name}"] = published_terms(model.family)
    for folder in (*recipe.distillation.teachers, *([model.init_from] if model.init_from else ())):
        is_artifact = (folder / MANIFEST_NAME).exists()
        own = load_artifact(folder).graph("fp32").sha256 if is_artifact else sha256_of(folder / BEST)
        weights[folder.name if weights.get(folder.name, own) == own else "/".join(folder.parts[-2:])] = own
        record = read_report(folder) if is_artifact else read_run_info(folder)
        for name, sha256 in record.get("learned_from", {}).items():
            learned[name if learned.get(name, sha256) == sha256 else f"{name} of {folder.name}"] = sha256
        weights = record.get("weights_from", {}) | weights
        terms = record.get("weight_terms", {}) | terms
    return {"learned_from": learned, "weights_from": weights, "weight_terms": terms}
