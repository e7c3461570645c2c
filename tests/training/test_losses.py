"""Losses of supervised training and distillation, compared with their formulas."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax

from mien.data.contract import Array
from mien.models.backbones import Heads
from mien.training.config import DistillationConfig
from mien.training.losses import (
    attention_consistency,
    cross_entropy,
    distillation_loss,
)

RNG = np.random.default_rng(0)
STUDENT, TEACHER = RNG.normal(size=(5, 7)), RNG.normal(size=(5, 7)) * 3
VOTES = RNG.dirichlet(np.ones(7), size=5)
PRIOR = RNG.normal(size=7)


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float32)


@pytest.mark.parametrize("prior", [None, PRIOR])
def test_cross_entropy_takes_vote_shares_and_a_prior(prior: Array | None) -> None:
    log_probabilities = log_softmax(STUDENT + (0 if prior is None else prior), axis=1)
    expected = -(VOTES * log_probabilities).sum(axis=1).mean()
    adjustment = None if prior is None else tensor(prior)
    found = cross_entropy(tensor(STUDENT), tensor(VOTES), logit_adjustment=adjustment)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_token_modes_train_only_the_distillation_head() -> None:
    class_logits, token_logits = tensor(STUDENT).requires_grad_(), tensor(STUDENT).requires_grad_()
    config = DistillationConfig.model_construct(mode="token-soft", teachers=("t",), weight=1.0, temperature=2.0)
    heads = Heads(class_logits, token_logits)
    distillation_loss(heads, tensor(TEACHER), config).backward()
    assert class_logits.grad is None
    assert float(token_logits.grad.abs().max()) > 0.0


def test_attention_consistency_compares_maps_with_the_mirrored_ones() -> None:
    maps = tensor(RNG.normal(size=(2, 7, 3, 4)))
    assert float(attention_consistency(maps, maps[..., [3, 2, 1, 0]])) == 0
    expected = ((maps - maps[..., [3, 2, 1, 0]]) ** 2).mean()
    assert float(attention_consistency(maps, maps)) == pytest.approx(float(expected), rel=1e-6)
