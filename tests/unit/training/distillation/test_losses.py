"""Losses of supervised training and distillation, compared with their formulas."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from mien.models.backbones import Heads
from mien.training.config import DistillationConfig
from mien.training.distillation.losses import (
    attention_consistency,
    class_weights,
    cross_entropy,
    distillation_loss,
    hard_distillation,
    soft_distillation,
)

RNG = np.random.default_rng(0)
STUDENT, TEACHER = RNG.normal(size=(5, 7)), RNG.normal(size=(5, 7)) * 3
VOTES = RNG.dirichlet(np.ones(7), size=5)


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.float32)


def test_cross_entropy_takes_vote_shares() -> None:
    expected = -(VOTES * log_softmax(STUDENT, axis=1)).sum(axis=1).mean()
    assert float(cross_entropy(tensor(STUDENT), tensor(VOTES))) == pytest.approx(expected, rel=1e-5)


def test_logit_adjustment_adds_the_log_prior_to_the_logits() -> None:
    prior = RNG.normal(size=7)
    expected = -(VOTES * log_softmax(STUDENT + prior, axis=1)).sum(axis=1).mean()
    found = cross_entropy(tensor(STUDENT), tensor(VOTES), logit_adjustment=tensor(prior))
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_soft_distillation_is_tau_squared_times_the_mean_divergence(tau: float) -> None:
    log_teacher, log_student = log_softmax(TEACHER / tau, axis=1), log_softmax(STUDENT / tau, axis=1)
    expected = tau**2 * (softmax(TEACHER / tau, axis=1) * (log_teacher - log_student)).sum(axis=1).mean()
    assert float(soft_distillation(tensor(STUDENT), tensor(TEACHER), temperature=tau)) == pytest.approx(
        expected, rel=1e-5
    )


def test_hard_distillation_takes_the_teachers_decision_as_label() -> None:
    expected = -log_softmax(STUDENT, axis=1)[np.arange(5), TEACHER.argmax(axis=1)].mean()
    assert float(hard_distillation(tensor(STUDENT), tensor(TEACHER))) == pytest.approx(expected, rel=1e-5)


def test_token_modes_train_only_the_distillation_head() -> None:
    class_logits, token_logits = tensor(STUDENT).requires_grad_(), tensor(STUDENT).requires_grad_()
    config = DistillationConfig.model_construct(mode="token-soft", teachers=("t",), weight=1.0, temperature=2.0)
    heads = Heads(class_logits, token_logits)
    distillation_loss(heads, tensor(TEACHER), config).backward()
    assert class_logits.grad is None
    assert float(token_logits.grad.abs().max()) > 0.0


def test_class_balance_weighs_by_the_effective_number_of_faces() -> None:
    counts = np.array([8000, 1000, 200, 5000, 40, 600, 9])
    effective = 1 - 0.999**counts
    expected = (1 / effective) / (1 / effective).sum() * 7
    found = class_weights(tensor(counts), beta=0.999).numpy()
    assert found == pytest.approx(expected, rel=1e-5)
    weighted = -(VOTES * expected * log_softmax(STUDENT, axis=1)).sum(axis=1).mean()
    assert float(cross_entropy(tensor(STUDENT), tensor(VOTES), class_balance=tensor(found))) == pytest.approx(
        weighted, rel=1e-5
    )


def test_a_class_without_a_face_has_weight_zero() -> None:
    found = class_weights(tensor([100, 0, 10, 10, 10, 10, 10]), beta=0.99)
    assert float(found[1]) == 0.0
    assert torch.isfinite(found).all()
    assert float(found.sum()) == pytest.approx(7.0)


def test_attention_consistency_compares_maps_with_the_mirrored_ones() -> None:
    maps = tensor(RNG.normal(size=(2, 7, 3, 4)))
    assert float(attention_consistency(maps, maps[..., [3, 2, 1, 0]])) == 0
    expected = ((maps - maps[..., [3, 2, 1, 0]]) ** 2).mean()
    assert float(attention_consistency(maps, maps)) == pytest.approx(float(expected), rel=1e-6)
