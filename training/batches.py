"""Training batches: shuffled by seed, augmented in worker processes, and mixed.

Order, augmentation and mixing depend only on seed, epoch, face, and how often the face was drawn before in this epoch,
so a resumed run gets the same batches as an uninterrupted one.
"""

import math
from collections import Counter
from typing import NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mien.data.augment import Augment
from mien.data.contract import Array
from mien.training.config import MixConfig, Recipe, Sampler
from mien.training.faces import Split


class FaceBatch(NamedTuple):
    """A batch of B faces."""

    crops: Tensor  # (B, 112, 112, C) uint8
    targets: Tensor  # (B, K) float32


class FaceBatches(Dataset[FaceBatch]):
    """Map-style dataset of the batches of a run; item b depends only on the seed and b.

    The last, incomplete batch of an epoch is dropped.
    """

    def __init__(self, faces: Split, recipe: Recipe) -> None:
        self.faces, self.recipe = faces, recipe
        self.steps_per_epoch = len(faces) // recipe.batch_size
        self._epoch, self._order, self._repeats = -1, np.empty(0, int), np.empty(0, int)
        self._augment: Augment | None = None

    def _drawn(self, step: int) -> tuple[int, Array, Array]:
        """Epoch of a step, its faces (B,), and how often each was drawn before in this epoch, (B,)."""
        epoch, number = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            sampler, draws = self.recipe.data.sampler, Counter[int]()
            self._epoch = epoch
            self._order = epoch_order(self.faces.labels, seed=self.recipe.seed, epoch=epoch, sampler=sampler)
            self._repeats = np.zeros_like(self._order)
            for place, face in enumerate(self._order.tolist()):
                self._repeats[place] = draws[face]
                draws[face] += 1
        size = self.recipe.batch_size
        batch = slice(number * size, (number + 1) * size)
        return epoch, self._order[batch], self._repeats[batch]

    def keys(self, step: int) -> list[str]:
        """Keys of the faces in the batch of a step, to find the cause of a loss that is not finite."""
        return [self.faces.keys[int(index)] for index in self._drawn(step)[1]]

    def __getitem__(self, step: int) -> FaceBatch:
        if self._augment is None:  # created in the worker process
            cv2.setNumThreads(0)
            self._augment = Augment(self.recipe.augment)
        epoch, chosen, repeats = self._drawn(step)
        crops = []
        for face, repeat in zip(chosen.tolist(), repeats.tolist(), strict=True):
            seed = np.random.SeedSequence([self.recipe.seed, epoch, face, repeat]).generate_state(1)[0]
            crops.append(self._augment(np.asarray(self.faces.crops[face]), seed=int(seed)))
        return FaceBatch(torch.from_numpy(np.stack(crops)), torch.from_numpy(self.faces.targets[chosen]))


def epoch_order(labels: Array, *, seed: int, epoch: int, sampler: Sampler = "instance") -> Array:
    """Order of the faces in an epoch, (N,) indices; equal seeds and epochs give equal orders.

    Args:
        labels: (N,) class indices; -1 for unlabeled faces, which all samplers draw as often as `instance` does.
        seed, epoch: seed of the random generator.
        sampler: `instance` visits every face once. `class` and `square_root` draw with replacement, with equal
            probability per class or proportional to the square root of its size. Source: Kang et al. 2020, section 4.1.
    """
    draw = np.random.default_rng([seed, epoch])
    if sampler == "instance":
        return draw.permutation(len(labels))
    classes, place, counts = np.unique(labels, return_inverse=True, return_counts=True)
    share = counts.astype(np.float64) ** (0.0 if sampler == "class" else 0.5)
    known = classes >= 0
    share[known] *= counts[known].sum() / share[known].sum()
    share[~known] = counts[~known]
    return draw.choice(len(labels), size=len(labels), p=(share / counts)[place] / len(labels))


_STREAM = 0x6D6978  # differs from the seeds of order and augmentation


def mix(crops: Tensor, targets: Tensor, config: MixConfig, *, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Mix a batch; the input tensors are not modified.

    Args:
        crops: (B, H, W, C) uint8.
        targets: (B, 7) class shares.
    Returns: mixed crops and targets; face i is combined with face B - 1 - i.
    """
    rng = np.random.default_rng([_STREAM, seed, step])
    if not (config.mixup or config.cutmix) or rng.random() >= config.probability:
        return crops, targets
    use_cutmix = bool(config.cutmix) and (not config.mixup or rng.random() < 0.5)
    alpha = config.cutmix if use_cutmix else config.mixup
    lam = float(rng.beta(alpha, alpha))
    if use_cutmix:
        crops, lam = _cutmix(crops, lam, rng)
    else:
        crops = (crops.float() * lam + crops.flip(0).float() * (1 - lam)).round().to(crops.dtype)
    return crops, targets * lam + targets.flip(0) * (1 - lam)


def _cutmix(crops: Tensor, lam: float, rng: np.random.Generator) -> tuple[Tensor, float]:
    """Paste a box from the reversed batch; returns the share of pixels that remain, as the box is clipped."""
    height, width = crops.shape[1:3]
    half_y, half_x = (int(side * math.sqrt(1 - lam)) // 2 for side in (height, width))
    y, x = int(rng.integers(height)), int(rng.integers(width))
    top, bottom = max(0, y - half_y), min(height, y + half_y)
    left, right = max(0, x - half_x), min(width, x + half_x)
    mixed = crops.clone()
    mixed[:, top:bottom, left:right] = crops.flip(0)[:, top:bottom, left:right]
    return mixed, 1 - (bottom - top) * (right - left) / (height * width)
