"""Masked autoencoding: teach a transformer what faces look like before it sees a label (He et al. 2022).

    python -m training.pretrain training/recipes/pretrain/ferplus_mae.yaml [key=value ...] [--out runs/NAME]

Three quarters of the patches are hidden; the encoder sees the others alone, and a light decoder paints the hidden ones.
Writes a run folder as training/train.py does, with `encoder.pt`; a recipe starts from it with
`model.init_from: runs/NAME`. Running the same command again resumes.
"""

import logging
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from data.augment import AugmentConfig
from data.contract import LABELS, contract_id
from models.network import FaceNetwork
from training import checkpoint
from training.command import run_command
from training.config import DataSource, ModelConfig, OptimConfig, RecipeError, RuntimeConfig, read_as
from training.engine import append_metrics, choose_device, progress_bar, truncate_metrics
from training.initial import ENCODER_NAME, encoder_state
from training.loader import EpochPlan, Faces, JoinedFaces, load_faces, steps_per_epoch, train_batches
from training.optim import build_optimizer, build_scheduler
from training.run import METRICS_NAME, RunError, build_network, parameters, start_run

logger = logging.getLogger("training")


class MaskConfig(BaseModel):
    """What is hidden, and what paints it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: float = Field(0.75, gt=0, lt=1, description="of the patches, hidden")
    decoder_width: int = Field(96, ge=16, multiple_of=4)
    decoder_depth: int = Field(2, ge=1)
    decoder_heads: int = Field(3, ge=1)


class PretrainData(BaseModel):
    """Splits whose crops are learned from, labelled or not; a test split is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    train: tuple[DataSource, ...] = Field(min_length=1)
    cache_dir: Path = Path("cache")

    @model_validator(mode="after")
    def _train_alone(self) -> "PretrainData":
        for source in self.train:
            if source.split in ("valid", "test"):
                raise ValueError(f"{source.kind}: the {source.split} split is for measuring, never to learn from")
        return self


class PretrainRecipe(BaseModel):
    """Everything a pretraining run depends on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z0-9_]+$")
    seed: int = Field(0, ge=0)
    epochs: int = Field(ge=1)
    batch_size: int = Field(128, ge=2)
    data: PretrainData
    model: ModelConfig
    mask: MaskConfig = MaskConfig()
    optim: OptimConfig = OptimConfig()
    # what is painted is the picture: only where the face lies may vary
    augment: AugmentConfig = AugmentConfig(
        brightness=0.0, contrast=0.0, gamma=0.0, blur=0.0, noise=0.0, compression=0.0, erase=0.0
    )
    runtime: RuntimeConfig = RuntimeConfig()


def read_pretrain_recipe(path: Path, overrides: list[str]) -> PretrainRecipe:
    """Read a YAML recipe and apply `key.sub=value` overrides. Raises: RecipeError."""
    return read_as(PretrainRecipe, path, overrides)


class MaskedAutoencoder(nn.Module):
    """A face network's transformer as encoder, and a decoder that is thrown away afterwards.

    Raises: RecipeError, for a family or stem in which patches cannot be left out.
    """

    positions: Tensor

    def __init__(self, network: FaceNetwork, config: MaskConfig) -> None:
        super().__init__()
        transformer: Any = getattr(network.backbone, "network", None)
        embed: Any = getattr(transformer, "patch_embed", None)
        if not hasattr(transformer, "blocks") or not hasattr(embed, "proj"):
            raise RecipeError(
                "masked autoencoding leaves patches out before the transformer, so it needs model.family deit with "
                "stem patch; a convolutional stem looks across patches"
            )
        self.network, self.share = network, config.share
        self.patch_px: int = embed.patch_size[0]
        self.grid: tuple[int, int] = embed.grid_size
        width, channels = config.decoder_width, embed.proj.in_channels
        self.narrow = nn.Linear(transformer.embed_dim, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        positions = build_sincos2d_pos_embed(list(self.grid), dim=width, interleave_sin_cos=True)
        self.register_buffer("positions", positions[None], persistent=False)
        self.decoder = nn.Sequential(*(Block(width, config.decoder_heads) for _ in range(config.decoder_depth)))
        self.norm = nn.LayerNorm(width)
        self.paint = nn.Linear(width, self.patch_px**2 * channels)
        nn.init.normal_(self.mask_token, std=0.02)

    def forward(self, crops: Tensor, noise: Tensor) -> Tensor:
        """Mean squared error on the hidden patches' pixels, each patch normalised; a scalar.

        Args:
            crops: (B, 112, 112, C) uint8.
            noise: (B, patches); the patches with the largest numbers are hidden.
        """
        with torch.autocast(crops.device.type, enabled=False):
            pixels = self.network.preprocess(crops)
        order = noise.argsort(dim=1)
        visible = order[:, : max(1, round(order.shape[1] * (1 - self.share)))]
        painted = self._decode(self._encode(pixels, visible), visible)
        hidden = torch.ones_like(noise).scatter(1, visible, 0.0)  # (B, patches)
        error = (painted.float() - self._targets(pixels)).square().mean(dim=-1)
        return (error * hidden).sum() / hidden.sum()

    def _encode(self, pixels: Tensor, visible: Tensor) -> Tensor:
        transformer: Any = self.network.backbone.network
        # timm adds prefix tokens and positions, whatever kind they are; patches are left out only then
        tokens: Tensor = transformer.norm_pre(transformer._pos_embed(transformer.patch_embed(pixels)))
        prefix = transformer.num_prefix_tokens
        seen = torch.cat([tokens[:, :prefix], _take(tokens[:, prefix:], visible)], dim=1)
        return transformer.norm(transformer.blocks(seen))  # type: ignore[no-any-return]  # (B, prefix + visible, dim)

    def _decode(self, encoded: Tensor, visible: Tensor) -> Tensor:
        prefix = encoded.shape[1] - visible.shape[1]
        narrow = self.narrow(encoded)
        batch, width = narrow.shape[0], narrow.shape[2]
        patches = self.mask_token.to(narrow.dtype).repeat(batch, self.grid[0] * self.grid[1], 1)
        patches = patches.scatter(1, visible[..., None].expand(-1, -1, width), narrow[:, prefix:])
        tokens = torch.cat([narrow[:, :prefix], patches + self.positions.to(narrow.dtype)], dim=1)
        return self.paint(self.norm(self.decoder(tokens)[:, prefix:]))  # type: ignore[no-any-return]

    def _targets(self, pixels: Tensor) -> Tensor:
        """(B, patches, values) float32, each patch with mean 0 and variance 1; He et al. 2022, section 3."""
        patches = nn.functional.unfold(pixels, self.patch_px, stride=self.patch_px).transpose(1, 2)
        mean, variance = patches.mean(dim=-1, keepdim=True), patches.var(dim=-1, keepdim=True)
        return (patches - mean) / (variance + 1e-6).sqrt()


def _take(tokens: Tensor, chosen: Tensor) -> Tensor:
    return tokens.gather(1, chosen[..., None].expand(-1, -1, tokens.shape[2]))  # (B, chosen, dim)


def pretrain(recipe: PretrainRecipe, out: Path) -> Path:
    """Run a pretraining recipe to its end and return the run folder.

    Raises: RecipeError, RunError, CheckpointError; readers' errors for missing or damaged data.
    """
    device, autocast = choose_device(recipe.runtime)
    torch.manual_seed(recipe.seed)
    data, colour = recipe.data, recipe.model.colour
    parts = [load_faces(part, colour=colour, cache_dir=data.cache_dir, labelled=False) for part in data.train]
    model = MaskedAutoencoder(build_network(recipe.model), recipe.mask).to(device)
    start_run(out, recipe, _facts(recipe, parts, model))
    session = _Session(recipe, out, model, JoinedFaces(parts), device=device, autocast=autocast)
    session.resume()
    for epoch in range(session.step // session.steps, recipe.epochs):
        session.run_epoch(epoch)
    return out


def _facts(recipe: PretrainRecipe, parts: list[Faces], model: MaskedAutoencoder) -> dict[str, Any]:
    sources = [f"{source.kind}/{source.split}" for source in recipe.data.train]
    return {
        "parameters": parameters(model.network),
        "data": {name: part.index_sha256 for name, part in zip(sources, parts, strict=True)},
        "faces": {name: len(part) for name, part in zip(sources, parts, strict=True)},
    }


class _Session:
    """The state that a checkpoint keeps, and what changes it."""

    def __init__(
        self,
        recipe: PretrainRecipe,
        out: Path,
        model: MaskedAutoencoder,
        faces: JoinedFaces,
        *,
        device: torch.device,
        autocast: torch.autocast,
    ) -> None:
        self.recipe, self.out, self.model, self.faces = recipe, out, model, faces
        self.device, self.autocast, self.step = device, autocast, 0
        self.steps = steps_per_epoch(len(faces), recipe.batch_size)
        if self.steps == 0:
            raise RecipeError(f"batch_size {recipe.batch_size}: larger than the {len(faces)} training faces")
        self.optimizer = build_optimizer(model, recipe.optim)
        self.scheduler = build_scheduler(self.optimizer, recipe.optim, epochs=recipe.epochs, steps_per_epoch=self.steps)

    def resume(self) -> None:
        """Go on from the newest whole checkpoint, if there is one."""
        state = checkpoint.read_newest(self.out)
        if state is not None:
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["rng"])
            self.step = state["step"]
            logger.info("resumed at step %d of %d", self.step, self.steps * self.recipe.epochs)
        truncate_metrics(self.out / METRICS_NAME, self.step)

    def run_epoch(self, epoch: int) -> None:
        """Train from the next step to the end of `epoch`, then keep the encoder."""
        self.model.train()
        recipe, runtime = self.recipe, self.recipe.runtime
        first = self.step - epoch * self.steps
        plan = EpochPlan(recipe.seed, epoch, recipe.batch_size, first)
        batches = train_batches(self.faces, recipe.augment, plan, workers=runtime.workers)
        started, losses = time.perf_counter(), []
        with progress_bar() as progress:
            bar = progress.add_task(f"epoch {epoch + 1}/{recipe.epochs}", total=self.steps, completed=first, note="")
            for done, (crops, _) in enumerate(batches, start=1):
                losses.append(self._step(crops.to(self.device)))
                speed = done * recipe.batch_size / (time.perf_counter() - started)
                progress.update(bar, advance=1, note=f"loss {losses[-1]:.3f}  {speed:.0f} faces/s")
                if self.step % runtime.log_every_steps == 0:
                    self._log({"loss": losses[-1], "faces_per_s": round(speed, 1)})
                if self.step % runtime.checkpoint_every_steps == 0:
                    checkpoint.save_last(self.out, self._state())
        logger.info("epoch %d of %d: loss %.4f", epoch + 1, recipe.epochs, float(np.mean(losses)))
        checkpoint.save(self.out / ENCODER_NAME, encoder_state(self.model.network))
        checkpoint.save_last(self.out, self._state())

    def _step(self, crops: Tensor) -> float:
        self.scheduler.step_update(self.step)
        # drawn from (seed, step) alone, so a resumed run hides the same patches
        draw = torch.Generator().manual_seed(
            int(np.random.SeedSequence([self.recipe.seed, self.step]).generate_state(1)[0])
        )
        patches = self.model.grid[0] * self.model.grid[1]
        noise = torch.rand(len(crops), patches, generator=draw).to(self.device)
        with self.autocast:
            loss = self.model(crops, noise)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise RunError(f"step {self.step}: loss is {value}; lower optim.learning_rate")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if self.recipe.optim.clip_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optim.clip_grad_norm)
        self.optimizer.step()
        self.step += 1
        return value

    def _state(self) -> dict[str, Any]:
        return {
            "labels": list(LABELS),
            "contract_id": contract_id(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": torch.get_rng_state(),
            "step": self.step,
        }

    def _log(self, values: dict[str, Any]) -> None:
        rate = self.optimizer.param_groups[0]["lr"]
        append_metrics(self.out / METRICS_NAME, {"step": self.step, **values, "lr": rate})


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit code."""
    return run_command(
        "python -m training.pretrain", "Masked autoencoding of faces.", read_pretrain_recipe, pretrain, arguments
    )


if __name__ == "__main__":
    sys.exit(main())
