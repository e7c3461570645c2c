"""Train one network as a recipe says, from the first step or from where it was killed.

    python -m training.train training/recipes/ferplus_teacher.yaml [key=value ...] [--out runs/NAME]

Reads crops (training/loader.py), writes a run folder: recipe.yaml, run.json, metrics.jsonl, last.pt, best.pt. The best
weights are chosen on validation; no test split is ever read. Running the same command again resumes.
"""

import argparse
import logging
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.logging import RichHandler
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from data.contract import LABELS, Array, DegenerateLandmarks, contract_id
from data.tree import DatasetError
from models.backbones import PretrainedWeightsUnavailable, UnknownBackbone
from models.network import FaceNetwork, Head, select_head
from training import checkpoint, metrics
from training.config import Recipe, RecipeError, read_recipe
from training.distill import distillation_loss
from training.engine import append_metrics, choose_device, progress_bar, truncate_metrics
from training.initial import load_initial
from training.loader import Faces, JoinedFaces, epoch_order, load_faces, steps_per_epoch, train_batches
from training.optim import build_optimizer, build_scheduler
from training.run import METRICS_NAME, RunError, Teachers, build_network, parameters, start_run

logger = logging.getLogger("training")


class TrainingDiverged(RuntimeError):
    """The loss is no longer a number."""


def train(recipe: Recipe, out: Path) -> Path:
    """Run a recipe to its end and return the run folder.

    Raises: RecipeError, RunError, CheckpointError, TrainingDiverged; readers' errors for missing or damaged data.
    """
    device, autocast = choose_device(recipe.runtime)
    torch.manual_seed(recipe.seed)
    data = recipe.data
    train_parts = [load_faces(part, colour=recipe.model.colour, cache_dir=data.cache_dir) for part in data.train]
    faces = JoinedFaces(train_parts)
    valid = load_faces(data.valid, colour=recipe.model.colour, cache_dir=data.cache_dir)
    network = build_network(recipe.model)
    if recipe.model.init_from is not None and not checkpoint.exists(out):
        load_initial(network, recipe.model.init_from)
    network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    teachers = Teachers(recipe.distillation).to(device) if recipe.distillation.teachers else None
    start_run(out, recipe, _facts(recipe, train_parts, valid, network))
    session = Session(recipe, out, network, faces, device=device, autocast=autocast, teachers=teachers)
    session.resume()
    for epoch in range(session.epoch, recipe.epochs):
        session.run_epoch(epoch)
        if session.validate(epoch, valid):
            break
    logger.info("best: epoch %d, validation %s %.2f %%", session.best_epoch + 1, recipe.select, 100 * session.best)
    return out


def _facts(recipe: Recipe, train_parts: list[Faces], valid: Faces, network: nn.Module) -> dict[str, Any]:
    sources = [*zip(recipe.data.train, train_parts, strict=True), (recipe.data.valid, valid)]
    return {
        "parameters": parameters(network),
        "data": {f"{source.kind}/{source.split}": part.index_sha256 for source, part in sources},
        "faces": {f"{source.kind}/{source.split}": len(part) for source, part in sources},
    }


class Session:
    """The state that a checkpoint keeps, and the three things that change it: resume, an epoch, a validation."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        network: FaceNetwork,
        faces: JoinedFaces,
        *,
        device: torch.device,
        autocast: torch.autocast,
        teachers: Teachers | None,
    ) -> None:
        self.recipe, self.out, self.network, self.faces = recipe, out, network, faces
        self.device, self.autocast, self.teachers = device, autocast, teachers
        self.steps = steps_per_epoch(len(faces), recipe.batch_size)
        if self.steps == 0:
            raise RecipeError(f"batch_size {recipe.batch_size}: larger than the {len(faces)} training faces")
        self.optimizer = build_optimizer(network, recipe.optim)
        self.scheduler = build_scheduler(self.optimizer, recipe.optim, epochs=recipe.epochs, steps_per_epoch=self.steps)
        self.ema = ModelEmaV3(network, decay=recipe.optim.ema_decay, use_warmup=True)
        self.log_prior = _log_prior(faces.targets, recipe.loss.logit_adjustment).to(device)
        self.step, self.best, self.best_epoch = 0, -1.0, -1

    @property
    def epoch(self) -> int:
        """Epoch of the next step."""
        return self.step // self.steps

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return {
            "labels": list(LABELS),
            "contract_id": contract_id(),
            "network": self.network.state_dict(),
            "ema": self.ema.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all(),
            "step": self.step,
            "best": self.best,
            "best_epoch": self.best_epoch,
        }

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one; later lines of the metrics file are dropped."""
        state = checkpoint.read_newest(self.out)
        if state is not None:
            self.network.load_state_dict(state["network"])
            self.ema.module.load_state_dict(state["ema"])
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["rng"])
            if state["cuda_rng"]:
                torch.cuda.set_rng_state_all(state["cuda_rng"])
            self.step, self.best, self.best_epoch = state["step"], state["best"], state["best_epoch"]
            logger.info("resumed at step %d of %d", self.step, self.steps * self.recipe.epochs)
        truncate_metrics(self.out / METRICS_NAME, self.step)

    def run_epoch(self, epoch: int) -> None:
        """Train from the next step to the end of `epoch`."""
        self.network.train()
        first = self.step - epoch * self.steps
        batches = train_batches(
            self.faces,
            self.recipe.augment,
            batch_size=self.recipe.batch_size,
            seed=self.recipe.seed,
            epoch=epoch,
            first=first,
            workers=self.recipe.runtime.workers,
        )
        started, waited, asked = time.perf_counter(), 0.0, time.perf_counter()
        with progress_bar() as progress:
            bar = progress.add_task(
                f"epoch {epoch + 1}/{self.recipe.epochs}", total=self.steps, completed=first, note=""
            )
            for done, (crops, targets) in enumerate(batches, start=1):
                waited += time.perf_counter() - asked
                parts = self._step(crops.to(self.device), targets.to(self.device))
                elapsed = time.perf_counter() - started
                speed = done * self.recipe.batch_size / elapsed
                progress.update(bar, advance=1, note=f"loss {parts['loss']:.3f}  {speed:.0f} faces/s")
                if self.step % self.recipe.runtime.log_every_steps == 0:
                    rates = {"faces_per_s": round(speed, 1), "data_wait_share": round(waited / elapsed, 4)}
                    self._log({"step": self.step, **parts, **rates})
                if self.step % self.recipe.runtime.checkpoint_every_steps == 0:
                    checkpoint.save_last(self.out, self.state())
                asked = time.perf_counter()

    def _step(self, crops: Tensor, targets: Tensor) -> dict[str, float]:
        self.scheduler.step_update(self.step)
        with self.autocast:
            teacher_logits = self._teach(crops)
            heads = self.network(crops)
        parts = distillation_loss(
            heads,
            targets,
            teacher_logits,
            self.recipe.distillation,
            log_prior=self.log_prior,
            smoothing=self.recipe.loss.label_smoothing,
        )
        loss = float(parts.total.detach())
        if not math.isfinite(loss):
            raise TrainingDiverged(f"step {self.step}: loss is {loss}. {self._batch_faces()}")
        self.optimizer.zero_grad(set_to_none=True)
        parts.total.backward()  # type: ignore[no-untyped-call]
        if self.recipe.optim.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.optim.clip_grad_norm)
        self.optimizer.step()
        self.step += 1
        self.ema.update(self.network, step=self.step)
        named = {"loss": loss, "supervised": float(parts.supervised.detach())}
        return {**named, "distillation": float(parts.distillation.detach()), "lr": self.optimizer.param_groups[0]["lr"]}

    def _teach(self, crops: Tensor) -> Tensor | None:
        if self.teachers is None:
            return None
        with torch.no_grad():
            return self.teachers.eval()(crops)  # type: ignore[no-any-return]

    def _batch_faces(self) -> str:
        epoch, number = divmod(self.step, self.steps)
        order = epoch_order(len(self.faces), seed=self.recipe.seed, epoch=epoch)
        size = self.recipe.batch_size
        chosen = [self.faces.keys[int(i)] for i in order[number * size : (number + 1) * size]]
        return f"Lower optim.learning_rate, or look at this batch: {', '.join(chosen)}"

    def validate(self, epoch: int, valid: Faces) -> bool:
        """Score the EMA weights, keep them if they are the best so far; returns whether patience has run out."""
        heads = predict(self.ema.module, valid.crops, device=self.device, autocast=self.autocast)
        scores = {head: _score(logits, valid.labels) for head, logits in heads.items()}
        head = max(scores, key=lambda name: scores[name][self.recipe.select])
        score = scores[head]
        self._log({"step": self.step, "epoch": epoch, "head": head, **{f"valid_{k}": v for k, v in score.items()}})
        logger.info(
            "epoch %d: validation accuracy %.2f %%, mean class %.2f %% (%s head)",
            epoch + 1, 100 * score["accuracy"], 100 * score["mean_class_accuracy"], head,
        )  # fmt: skip
        if score[self.recipe.select] > self.best:
            self.best, self.best_epoch = score[self.recipe.select], epoch
            chosen = {"weights": self.ema.module.state_dict(), "head": head, "epoch": epoch, **score}
            about = {"labels": list(LABELS), "contract_id": contract_id()}
            checkpoint.save(self.out / checkpoint.BEST, {**chosen, **about})
        checkpoint.save_last(self.out, self.state())
        patience = self.recipe.patience_epochs
        return patience is not None and epoch - self.best_epoch >= patience

    def _log(self, values: dict[str, Any]) -> None:
        append_metrics(self.out / METRICS_NAME, values)


def _log_prior(targets: Array, tau: float) -> Tensor:
    frequency = targets.mean(axis=0)
    return torch.from_numpy(tau * np.log(np.maximum(frequency, 1e-6))).float()


def predict(
    network: nn.Module, crops: Array, *, device: torch.device, autocast: torch.autocast, batch: int = 256
) -> dict[Head, Array]:
    """Logits of every head the network has, (N, 7) each, and of their mean; the network is left in eval mode."""
    network.eval()
    answers: dict[Head, list[Array]] = {}
    for start in range(0, len(crops), batch):
        pixels = torch.from_numpy(np.array(crops[start : start + batch])).to(device)
        with torch.no_grad(), autocast:
            heads = network(pixels)
        names: tuple[Head, ...] = ("class",) if heads.distillation_logits is None else ("class", "distillation", "mean")
        for name in names:
            answers.setdefault(name, []).append(select_head(heads, name).cpu().numpy())
    return {name: np.concatenate(parts) for name, parts in answers.items()}


def _score(logits: Array, labels: Array) -> dict[str, float]:
    counts = metrics.confusion(logits.argmax(axis=1), labels)
    return {"accuracy": metrics.accuracy(counts), "mean_class_accuracy": metrics.mean_class_accuracy(counts)}


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m training.train", description="Train one network as a recipe says.")
    parser.add_argument("recipe", type=Path, help="a file of training/recipes/")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes, e.g. optim.learning_rate=3e-4")
    parser.add_argument("--out", type=Path, help="run folder (default: runs/<name>); an interrupted run there goes on")
    options = parser.parse_intermixed_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[RichHandler(show_path=False)])
    try:
        recipe = read_recipe(options.recipe, options.overrides)
        train(recipe, options.out or Path("runs") / recipe.name)
    except (
        RecipeError, RunError, UnknownBackbone, PretrainedWeightsUnavailable, checkpoint.CheckpointError,
        TrainingDiverged, DatasetError, DegenerateLandmarks, ValueError,
    ) as error:  # fmt: skip
        logger.error("%s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
