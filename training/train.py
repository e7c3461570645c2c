"""Train one network as a recipe says, from the first step or from where it was killed.

    python -m training.train training/recipes/ferplus_teacher.yaml [key=value ...] [--out runs/NAME]
    torchrun --nproc-per-node=2 -m training.train ...    # several processes, training/parallel.py

Reads crops (training/loader.py), writes a run folder: recipe.yaml, run.json, metrics.jsonl, last.pt, best.pt. The best
weights are chosen on validation; no test split is ever read. Running the same command again resumes.
"""

import logging
import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.utils.model_ema import ModelEmaV3
from torch import Tensor, nn

from data.contract import LABELS, Array, contract_id
from models.backbones import Heads
from models.network import FaceNetwork, Head, select_head
from training import checkpoint, metrics, parallel
from training.command import run_command
from training.config import LossConfig, Recipe, RecipeError, read_recipe
from training.distill import ClassTerms, LossParts, class_weights, distillation_loss
from training.engine import (
    Clock,
    Figures,
    TrainingDiverged,
    choose_device,
    flops_per_face,
    matmul_flops_per_s,
    progress_bar,
)
from training.initial import load_initial
from training.loader import EpochPlan, Faces, JoinedFaces, epoch_order, load_faces, steps_per_epoch, train_batches
from training.mix import mix
from training.optim import build_optimizer, build_scheduler
from training.parallel import Trained, World
from training.run import METRICS_NAME, build_network, parameters, start_run
from training.teachers import Teachers

logger = logging.getLogger("training")


def train(recipe: Recipe, out: Path) -> Path:
    """Run a recipe to its end and return the run folder.

    Raises: RecipeError, RunError, CheckpointError, TrainingDiverged; readers' errors for missing or damaged data.
    """
    device, autocast = choose_device(recipe.runtime)
    world, device = parallel.join(device)
    try:
        return _train(recipe, out, Machine(device, autocast, world))
    finally:
        parallel.leave()


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a run computes."""

    device: torch.device
    autocast: torch.autocast
    world: World = World()  # noqa: RUF009 (frozen)


def _train(recipe: Recipe, out: Path, machine: Machine) -> Path:
    torch.manual_seed(recipe.seed)
    world = machine.world
    train_parts, valid = world.first_alone(lambda: _read_data(recipe))
    faces = JoinedFaces(train_parts)
    _check_classes(faces, recipe)
    network = build_network(recipe.model)
    if recipe.model.init_from is not None and not checkpoint.exists(out):
        load_initial(network, recipe.model.init_from, train_parts[0].crops)
    if world.size > 1 and machine.device.type == "cuda":
        # on the CPU, where there is none, each process normalises by its own part of the batch
        network = nn.SyncBatchNorm.convert_sync_batchnorm(network)  # type: ignore[no-untyped-call]
    network = network.to(machine.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    teachers = Teachers(recipe.distillation).to(machine.device) if recipe.distillation.teachers else None
    if world.writes:
        start_run(out, recipe, _facts(recipe, train_parts, valid, network) | {"processes": world.size})
    session = Session(recipe, out, network, faces, machine=machine, teachers=teachers)
    session.resume()
    for epoch in range(session.epoch, recipe.epochs):
        session.run_epoch(epoch)
        if session.validate(epoch, valid):
            break
    session.close()
    logger.info("best: epoch %d, validation %s %.2f %%", session.best_epoch + 1, recipe.select, 100 * session.best)
    return out


def _read_data(recipe: Recipe) -> tuple[list[Faces], Faces]:
    colour, cache_dir = recipe.model.colour, recipe.data.cache_dir
    parts = [load_faces(part, colour=colour, cache_dir=cache_dir) for part in recipe.data.train]
    return parts, load_faces(recipe.data.valid, colour=colour, cache_dir=cache_dir)


def _check_classes(faces: JoinedFaces, recipe: Recipe) -> None:
    labelled = faces.labels[faces.targets.sum(axis=1) > 0]  # the others learn from the teacher alone
    counts = np.bincount(labelled, minlength=len(LABELS))
    empty = [label for label, count in zip(LABELS, counts, strict=True) if count == 0]
    if empty and len(labelled) and not recipe.data.allow_missing_classes:
        raise RecipeError(
            f"data.train: no face of {', '.join(empty)} among {len(labelled)}, so it can never be predicted. Add "
            "faces, or set data.allow_missing_classes: true."
        )


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
        machine: Machine,
        teachers: Teachers | None,
    ) -> None:
        self.recipe, self.out, self.network, self.faces = recipe, out, network, faces
        self.device, self.autocast, self.world, self.teachers = (
            machine.device,
            machine.autocast,
            machine.world,
            teachers,
        )
        self.steps = steps_per_epoch(len(faces), recipe.batch_size)
        self._check_batch()
        self.optimizer = build_optimizer(network, recipe.optim)
        self.scheduler = build_scheduler(self.optimizer, recipe.optim, epochs=recipe.epochs, steps_per_epoch=self.steps)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=recipe.runtime.precision == "fp16")
        self.ema = ModelEmaV3(network, decay=recipe.optim.ema_decay, use_warmup=True)
        self.terms = _class_terms(faces.targets, recipe.loss, self.device)
        self.step, self.best, self.best_epoch = 0, -1.0, -1
        self.figures: Figures | None = None
        self.flops_per_face = self._count_flops()
        self.forward = self._trained()

    def _check_batch(self) -> None:
        size, processes = self.recipe.batch_size, self.world.size
        if self.steps == 0:
            raise RecipeError(f"batch_size {size}: larger than the {len(self.faces)} training faces")
        if processes > 1 and size % (2 * processes):
            raise RecipeError(f"batch_size {size}: {processes} processes share it, so a multiple of {2 * processes}")

    def _count_flops(self) -> int:
        """Of one training step, per face: forward, and twice that backward; a teacher goes forward alone."""
        channels = 1 if self.recipe.model.colour == "luminance" else 3
        taught = 0
        if self.teachers is not None:
            taught = flops_per_face(self.teachers, self.device, channels=channels)
        return 3 * flops_per_face(self.network, self.device, channels=channels) + taught

    def _trained(self) -> Trained:
        """The network as steps call it: compiled, shared between processes, or simply itself."""
        network: Any = torch.compile(self.network) if self.recipe.runtime.compile else self.network
        tokens = self.recipe.distillation.mode.startswith("token-")
        two_heads = bool(getattr(self.network.backbone, "distilled", False))
        return self.world.wrap(network, all_used=tokens or not two_heads)

    @property
    def epoch(self) -> int:
        """Epoch of the next step."""
        return self.step // self.steps

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on; every process must ask."""
        own = {"rng": torch.get_rng_state(), "cuda_rng": torch.cuda.get_rng_state_all()}
        state = {
            "labels": list(LABELS),
            "contract_id": contract_id(),
            "network": self.network.state_dict(),
            "ema": self.ema.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            **own,
            "step": self.step,
            "best": self.best,
            "best_epoch": self.best_epoch,
        }
        if self.scaler.is_enabled():
            state["scaler"] = self.scaler.state_dict()
        if self.world.size > 1:
            state["ranks"] = self.world.gather(own)
        return state

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one; later lines of the metrics file are dropped."""
        state = checkpoint.read_newest(self.out)
        if state is not None:
            self.network.load_state_dict(state["network"])
            self.ema.module.load_state_dict(state["ema"])
            self.optimizer.load_state_dict(state["optimizer"])
            if "scaler" in state:
                self.scaler.load_state_dict(state["scaler"])
            self.step, self.best, self.best_epoch = state["step"], state["best"], state["best_epoch"]
            logger.info("resumed at step %d of %d", self.step, self.steps * self.recipe.epochs)
        self._set_random_state(state)
        if self.world.writes:
            self.figures = Figures(self.out / METRICS_NAME, step=self.step, board=self.recipe.runtime.tensorboard)

    def _set_random_state(self, state: dict[str, Any] | None) -> None:
        ranks = [] if state is None else state.get("ranks", [state])
        if self.world.rank < len(ranks):
            own = ranks[self.world.rank]
            torch.set_rng_state(own["rng"])
            if own["cuda_rng"]:
                torch.cuda.set_rng_state_all(own["cuda_rng"])
        elif self.world.rank:  # each process drops out other paths
            torch.manual_seed(int(np.random.SeedSequence([self.recipe.seed, self.world.rank]).generate_state(1)[0]))

    def close(self) -> None:
        """Close what is open."""
        if self.figures is not None:
            self.figures.close()

    def run_epoch(self, epoch: int) -> None:
        """Train from the next step to the end of `epoch`."""
        self.network.train()
        recipe, world, first = self.recipe, self.world, self.step - epoch * self.steps
        plan = EpochPlan(recipe.seed, epoch, recipe.batch_size, first, world.rank, world.size)
        batches = train_batches(self.faces, recipe.augment, plan, workers=recipe.runtime.workers)
        clock = Clock()
        with progress_bar(shown=world.writes) as progress:
            bar = progress.add_task(f"epoch {epoch + 1}/{recipe.epochs}", total=self.steps, completed=first, note="")
            for crops, targets in batches:
                clock.batch_came()
                parts = self._step(crops.to(self.device), targets.to(self.device))
                clock.step_done(recipe.batch_size)
                right = 100 * parts.get("accuracy", float("nan"))
                note = f"loss {parts['loss']:.3f}  {right:.0f} % right  {clock.faces_per_s:.0f} faces/s"
                progress.update(bar, advance=1, note=note)
                self._keep(parts, clock, ends_epoch=self.step == (epoch + 1) * self.steps)
        self._report_engine(clock)

    def _keep(self, parts: dict[str, float], clock: Clock, *, ends_epoch: bool) -> None:
        runtime = self.recipe.runtime
        if self.step % runtime.log_every_steps == 0:
            self._log({"step": self.step, **parts, **clock.rates()})
        # the epoch's last step is kept with its validation, which a resumed run would otherwise miss
        if self.step % runtime.checkpoint_every_steps == 0 and not ends_epoch:
            self._save_last()

    def _save_last(self) -> None:
        state = self.state()
        if self.world.writes:
            checkpoint.save_last(self.out, state)

    def _report_engine(self, clock: Clock) -> None:
        """Log the epoch's speed, and what share of the device's matrix product rate its arithmetic was."""
        rates = clock.rates()
        if not self.world.writes or not clock.faces:
            return
        reachable = self.world.size * matmul_flops_per_s(self.device, self.recipe.runtime.precision)
        reached = clock.faces_per_s * self.flops_per_face
        figures = {
            "step_gflops_per_face": round(self.flops_per_face / 1e9, 4),
            "matmul_tflops_per_s": round(reachable / 1e12, 3),
            "matmul_share": round(reached / reachable, 4),
        }
        self._log({"step": self.step, **rates, **figures})
        logger.info(
            "%.0f faces/s, %.1f %% of the time waiting for data, %.1f %% of the matrix product rate",
            rates["faces_per_s"], 100 * rates["data_wait_share"], 100 * figures["matmul_share"],
        )  # fmt: skip

    def _step(self, crops: Tensor, targets: Tensor) -> dict[str, float]:
        self.scheduler.step_update(self.step)
        crops, targets = mix(crops, targets, self.recipe.mix, seed=self.recipe.seed, step=self.step)
        self.optimizer.zero_grad(set_to_none=True)
        loss, supervised, taught, right, known = self.world.mean(self._gradients(crops, targets)).tolist()
        if not math.isfinite(loss):
            raise TrainingDiverged(f"step {self.step}: loss is {loss}. {self._batch_faces()}")
        self._move()
        self.step += 1
        self.ema.update(self.network, step=self.step)
        named = {"loss": loss, "supervised": supervised, "distillation": taught}
        accuracy = {"accuracy": right / known} if known else {}
        return {**named, **accuracy, "lr": max(group["lr"] for group in self.optimizer.param_groups)}

    def _gradients(self, crops: Tensor, targets: Tensor) -> Tensor:
        """Add a batch's gradients up, in as many parts as the recipe says.

        Returns: (5,) the three loss parts, and the shares of the batch that are right and that have a label.
        """
        pieces = self.recipe.runtime.accumulate
        found = torch.zeros(5, device=self.device)
        chunks = list(zip(crops.tensor_split(pieces), targets.tensor_split(pieces), strict=True))
        for number, (some_crops, some_targets) in enumerate(chunks, start=1):
            share = len(some_crops) / len(crops)
            with nullcontext() if number == pieces else parallel.without_sync(self.forward):
                parts, heads = self._losses(some_crops, some_targets)
                self.scaler.scale(parts.total * share).backward()  # type: ignore[no-untyped-call]
            found += share * torch.stack([*(part.detach() for part in parts), *_shares_right(heads, some_targets)])
        return found

    def _losses(self, crops: Tensor, targets: Tensor) -> tuple[LossParts, Heads]:
        with self.autocast:
            teacher_logits = self._teach(crops)
            heads = self.forward(crops)
        parts = distillation_loss(
            heads,
            targets,
            teacher_logits,
            self.recipe.distillation,
            terms=self.terms,
            smoothing=self.recipe.loss.label_smoothing,
        )
        return parts, heads

    def _move(self) -> None:
        if self.recipe.optim.clip_grad_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.optim.clip_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()

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
        if self.world.writes:
            self._score_epoch(epoch, valid)
        self.best, self.best_epoch = self.world.from_first((self.best, self.best_epoch))
        self._save_last()
        patience = self.recipe.patience_epochs
        return patience is not None and epoch - self.best_epoch >= patience

    def _score_epoch(self, epoch: int, valid: Faces) -> None:
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

    def _log(self, values: dict[str, Any]) -> None:
        if self.figures is not None:
            self.figures.add(values)


def _class_terms(targets: Array, loss: LossConfig, device: torch.device) -> ClassTerms:
    prior = _log_prior(targets, loss.logit_adjustment).to(device)
    if loss.class_balance is None:
        return ClassTerms(log_prior=prior)
    counts = torch.from_numpy(targets.sum(axis=0))
    return ClassTerms(prior, class_weights(counts, beta=loss.class_balance).to(device))


def _shares_right(heads: Heads, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Shares of a batch whose class head agrees with the label, and that have a label; scalars."""
    known = targets.sum(dim=1) > 0
    right = known & (heads.class_logits.detach().argmax(dim=1) == targets.argmax(dim=1))
    return right.float().mean(), known.float().mean()


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
    return run_command("python -m training.train", "Train one network as a recipe says.", read_recipe, train, arguments)


if __name__ == "__main__":
    sys.exit(main())
