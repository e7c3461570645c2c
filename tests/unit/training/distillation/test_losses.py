"""Losses of supervised training and distillation, compared with their formulas."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from mien.data.contract import Array
from mien.models.backbones import Heads
from mien.training.config import DistillationConfig
from mien.training.distillation.losses import (
    attention_consistency,
    class_weights,
    cross_entropy,
    distillation_loss,
    soft_distillation,
)

RNG = np.random.default_rng(0)
STUDENT, TEACHER = RNG.normal(size=(5, 7)), RNG.normal(size=(5, 7)) * 3
VOTES = RNG.dirichlet(np.ones(7), size=5)
PRIOR, WEIGHTS = RNG.normal(size=7), RNG.uniform(0.5, 2, size=7)


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float32)


@pytest.mark.parametrize(("prior", "weights"), [(None, None), (PRIOR, None), (None, WEIGHTS)])
def test_cross_entropy_takes_vote_shares_a_prior_and_class_weights(prior: Array | None, weights: Array | None) -> None:
    log_probabilities = log_softmax(STUDENT + (0 if prior is None else prior), axis=1)
    expected = -(VOTES * (1 if weights is None else weights) * log_probabilities).sum(axis=1).mean()
    found = cross_entropy(
        tensor(STUDENT),
        tensor(VOTES),
        logit_adjustment=None if prior is None else tensor(prior),
        class_balance=None if weights is None else tensor(weights),
    )
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_soft_distillation_is_tau_squared_times_the_mean_divergence(tau: float) -> None:
    log_teacher, log_student = log_softmax(TEACHER / tau, axis=1), log_softmax(STUDENT / tau, axis=1)
    expected = tau**2 * (softmax(TEACHER / tau, axis=1) * (log_teacher - log_student)).sum(axis=1).mean()
    assert float(soft_distillation(tensor(STUDENT), tensor(TEACHER), temperature=tau)) == pytest.approx(
        expected, rel=1e-5
    )


def test_token_modes_train_only_the_distillation_head() -> None:
    class_logits, token_logits = tensor(STUDENT).requires_grad_(), tensor(STUDENT).requires_grad_()
    config = DistillationConfig.model_construct(mode="token-soft", teachers=("t",), weight=1.0, temperature=2.0)
    heads = Heads(class_logits, token_logits)
    distillation_loss(heads, tensor(TEACHER), config).backward()
    assert class_logits.grad is None
    assert float(token_logits.grad.abs().max()) > 0.0


@pytest.mark.parametrize("counts", [(8000, 1000, 200, 5000, 40, 600, 9), (100, 0, 10, 10, 10, 10, 10)])
def test_class_balance_weighs_by_the_effective_number_of_faces(counts: tuple[int, ...]) -> None:
    effective = 1 - 0.999 ** np.array(counts)
    inverse = np.divide(1, effective, out=np.zeros(7), where=effective > 0)
    assert class_weights(tensor(counts), beta=0.999).numpy() == pytest.approx(7 * inverse / inverse.sum(), rel=1e-5)


def test_attention_consistency_compares_maps_with_the_mirrored_ones() -> None:
    maps = tensor(RNG.normal(size=(2, 7, 3, 4)))
    assert float(attention_consistency(maps, maps[..., [3, 2, 1, 0]])) == 0
    expected = ((maps - maps[..., [3, 2, 1, 0]]) ** 2).mean()
    assert float(attention_consistency(maps, maps)) == pytest.approx(float(expected), rel=1e-6)
