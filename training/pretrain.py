"""Pretraining of a transformer by masked autoencoding, on faces without labels (He et al. 2022).

    mien pretrain training/recipes/pretrain/ferplus_mae.yaml [key=value ...] [--out runs/NAME]

Three quarters of the patches are masked. The encoder gets the others only, and a light decoder reconstructs the masked
ones. Writes a run folder like training/train.py, with `encoder.pt`; a recipe uses it with `model.init_from: runs/NAME`.
Rerun the same command to resume.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from mien.data.augment import AugmentConfig
from mien.data.contract import contract_id
from mien.models.masked_autoencoder import MaskConfig, MaskedAutoencoder
from mien.models.network import FaceNetwork
from mien.models.strict import LocalPath, StrictModel
from mien.training.command import recipe_command
from mien.training.config import DataSource, FaceRecipe, OptimConfig
from mien.training.loop import checkpoint
from mien.training.loop.batches import FaceBatch, JoinedFaces, load_faces
from mien.training.loop.machine import Machine, use_machine
from mien.training.loop.provenance import data_facts, provenance
from mien.training.loop.run_folder import parameters
from mien.training.loop.session import Session
from mien.training.loop.task import FaceTask, Forward
from mien.training.release.initialization import load_start, model_to_build


class PretrainData(StrictModel):
    """Training splits, labeled or not; validation and test splits are rejected."""

    train: tuple[DataSource, ...] = Field(min_length=1)
    cache_dir: LocalPath = Path("cache")

    @model_validator(mode="after")
    def _check_splits(self) -> "PretrainData":
        for source in self.train:
            if source.split in ("valid", "test"):
                raise ValueError(f"{source.kind}: the {source.split} split is for evaluation, not for training")
        return self


class PretrainOptim(OptimConfig):
    """Optimizer as in training, but without a moving average by default."""

    ema_decay: float | None = Field(None, ge=0, lt=1, description="decay of the moving average to save as the encoder")


@dataclass(frozen=True, slots=True)
class PretrainAugment(AugmentConfig):
    """Geometric augmentation only by default: the target is the augmented image itself."""

    brightness: float = 0.0
    contrast: float = 0.0
    gamma: float = 0.0
    blur: float = 0.0
    noise: float = 0.0
    compression: float = 0.0
    erase: float = 0.0


class PretrainRecipe(FaceRecipe):
    """Recipe of a pretraining run."""

    data: PretrainData
    mask: MaskConfig = MaskConfig()
    optim: PretrainOptim = PretrainOptim()
    augment: PretrainAugment = PretrainAugment()


def pretrain(recipe: PretrainRecipe, out: Path) -> Path:
    """Run a pretraining recipe to its end and return the run folder.

    Raises: RecipeError, RunError, CheckpointError, TrainingDiverged; UnknownBackbone, for a network whose patches
        cannot be removed; DatasetError, for missing or damaged data.
    """
    data, color = recipe.data, recipe.model.color
    model = model_to_build(recipe.model, run=out)
    with use_machine(recipe.runtime) as machine:
        torch.manual_seed(recipe.seed)
        parts = machine.world.first_alone(
            lambda: [load_faces(part, color=color, cache_dir=data.cache_dir, labeled=False) for part in data.train]
        )
        encoder = FaceNetwork(model)
        start = load_start(encoder, recipe.model, parts[0].crops, run=out)
        network = MaskedAutoencoder(encoder, recipe.mask).to(machine.device)
        task = Masked(recipe, out, network, JoinedFaces(parts), machine=machine)
        facts = data_facts(data.train, parts)
        sources = provenance(recipe.model, facts["data"], folders=start)
        Session(recipe, out, task, machine=machine).run({"parameters": parameters(network.network), **facts, **sources})
    return out


class MaskedBatch(NamedTuple):
    """A batch of B faces with the noise that determines their masked patches."""

    crops: Tensor  # (B, 112, 112, C) uint8
    noise: Tensor  # (B, patches)


class Masked(FaceTask):
    """Masked autoencoding; the masked patches depend only on the seed and the step."""

    all_weights_used = False  # the heads of the encoder are not used
    recipe: PretrainRecipe
    network: MaskedAutoencoder

    def __init__(
        self, recipe: PretrainRecipe, out: Path, network: MaskedAutoencoder, faces: JoinedFaces, *, machine: Machine
    ) -> None:
        super().__init__(recipe, faces, machine)
        self.out, self.network = out, network

    def prepare(self, batch: FaceBatch, step: int) -> MaskedBatch:
        """Replace the targets by noise."""
        seed = int(np.random.SeedSequence([self.recipe.seed, step]).generate_state(1)[0])
        generator = torch.Generator().manual_seed(seed)
        size = self.recipe.batch_size
        noise = torch.rand(size, self.network.patches, generator=generator)
        mine = self.machine.world.mine(np.arange(size))
        return MaskedBatch(batch.crops, noise[torch.from_numpy(mine)].to(batch.crops.device))

    def losses(self, forward: Forward, batch: MaskedBatch) -> dict[str, Tensor]:
        """Mean squared error on masked patches."""
        with self.machine.autocast:
            return {"loss": forward(*batch)}

    def end_epoch(self, session: Session, epoch: int) -> None:
        """Save the encoder, without the heads, which pretraining does not use."""
        if session.world.writes:
            state = cast(MaskedAutoencoder, session.averaged).network.state_dict()
            weights = {k: v.cpu() for k, v in state.items() if ".head." not in k and ".head_dist." not in k}
            checkpoint.save(self.out / checkpoint.ENCODER, {"weights": weights, "contract_id": contract_id()})


main = recipe_command("pretrain", PretrainRecipe, pretrain)


if __name__ == "__main__":
    sys.exit(main())
