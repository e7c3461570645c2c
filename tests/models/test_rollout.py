"""Attention rollout and Grad-CAM."""

import torch

from mien.models.network import FaceNetwork
from mien.models.rollout import grad_cam, has_attention, rollout
from tests.support.models import config


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
