"""Attention of transformers and class maps of CNNs: traces, distances, rollout and Grad-CAM."""

import pytest
import torch

from mien.models.attention import attention_distances, grid_side, position_similarity, trace
from mien.models.network import FaceNetwork
from mien.models.rollout import grad_cam, has_attention, rollout
from tests.support.models import config, crops

SMALL = {"embed_dim": 32, "depth": 3, "num_heads": 2, "patch_px": 8}


def network(family: str = "deit", name: str = "deit_tiny_distilled_patch16_224", **options: object) -> FaceNetwork:
    chosen = {**SMALL, **options} if family == "deit" else options
    torch.manual_seed(0)
    return FaceNetwork(config(name, family=family, img_size=56, **chosen)).eval()


def test_a_trace_ends_with_the_tokens_that_the_heads_read() -> None:
    student = network()
    seen = trace(student, crops(2))
    heads = student(crops(2))
    inner = student.backbone.network
    assert seen.prefix.shape == (2, 4, 2, 32)  # three blocks and the last norm
    assert [tuple(attention.shape) for attention in seen.attention] == [(2, 2, 51, 51)] * 3
    torch.testing.assert_close(seen.attention[0].sum(-1), torch.ones(2, 2, 51), atol=1e-5, rtol=0)
    torch.testing.assert_close(inner.head(seen.prefix[:, -1, 0]), heads.class_logits, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(inner.head_dist(seen.prefix[:, -1, 1]), heads.distillation_logits, atol=1e-5, rtol=1e-4)


def test_sinusoidal_positions_resemble_their_neighbors_most() -> None:
    student = network(position="sinusoidal")
    similarity = position_similarity(student)
    assert grid_side(student) == 7
    assert similarity is not None
    torch.testing.assert_close(similarity[2, 3, 2, 3], torch.tensor(1.0))
    assert similarity[0, 0, 0, 1] > similarity[0, 0, 0, 3]
    assert similarity[0, 0, 1, 0] > similarity[0, 0, 6, 6]
    assert position_similarity(network(name="deit_tiny_patch16_224", position="none")) is None


def test_attention_distance_grows_from_zero_with_the_field_of_view() -> None:
    at_itself = torch.eye(2 + 9).expand(1, 1, 11, 11)
    everywhere = torch.full((1, 1, 11, 11), 1 / 11)
    left = torch.zeros(1, 1, 5, 5)  # a class token and a 2x2 grid
    left[..., 1:, 1] = 1.0  # every patch looks at the upper left one
    assert attention_distances(at_itself, patch_px=16).item() == 0
    assert attention_distances(everywhere, patch_px=16).item() > 16
    expected = 16 * (0 + 1 + 1 + 2**0.5) / 4
    assert attention_distances(left, patch_px=16).item() == pytest.approx(expected)


def test_rollout_follows_the_token_of_the_selected_head() -> None:
    attention = torch.eye(6).repeat(1, 3, 1, 1)  # two prefix tokens, a 2x2 grid; every token looks at itself
    attention[:, :, 0] = torch.nn.functional.one_hot(torch.tensor(3), 6)  # the class token at the second patch
    attention[:, :, 1] = torch.nn.functional.one_hot(torch.tensor(5), 6)  # the distillation token at the last
    torch.testing.assert_close(rollout([attention] * 2, head="class"), torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]))
    torch.testing.assert_close(rollout([attention], head="distillation"), torch.tensor([[[0.0, 0.0], [0.0, 1.0]]]))
    torch.testing.assert_close(rollout([attention], head="mean"), torch.tensor([[[0.0, 0.5], [0.0, 0.5]]]))


def test_only_a_transformer_with_a_class_token_has_a_rollout() -> None:
    options = {"patch_px": 8, "depth": 2, "global_pool": "avg"}
    for class_token in (True, False):
        network = FaceNetwork(config("deit_tiny_patch16_224", **options, class_token=class_token))
        assert has_attention(network.backbone) == class_token


def test_grad_cam_equals_its_definition_by_gradients() -> None:
    torch.manual_seed(0)
    network = FaceNetwork(config("resnet10t", family="cnn", img_size=112)).eval().backbone
    pixels = torch.randn(3, 1, 112, 112)
    features = network.network.forward_features(pixels)
    logits = network.network.forward_head(features)
    (gradients,) = torch.autograd.grad(logits.max(dim=1).values.sum(), features)
    expected = (gradients.mean(dim=(2, 3), keepdim=True) * features).sum(dim=1).relu()
    expected = expected / expected.sum(dim=(1, 2), keepdim=True)
    with torch.no_grad():
        heads = network(pixels)
        torch.testing.assert_close(grad_cam(heads.class_maps, heads.class_logits), expected, atol=1e-3, rtol=0)
    nothing = grad_cam(-torch.ones(1, 7, 2, 2), torch.zeros(1, 7))
    torch.testing.assert_close(nothing, torch.full((1, 2, 2), 0.25))
