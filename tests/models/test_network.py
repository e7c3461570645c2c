"""Preprocessing inside the network, selection of a head, and attention of transformers."""

import cv2
import numpy as np
import torch

from mien.models.network import FaceNetwork, Preprocess, select_head
from mien.models.rollout import rollout
from tests.support.models import SMALL, config, crops


def test_gray_rgb_equals_luminance() -> None:
    gray = crops(3, channels=1)
    for options in (
        {"color": "luminance", "normalization": "per_image"},
        {"color": "RGB", "normalization": "imagenet"},
    ):
        preprocess = Preprocess(img_size=56, **options)
        torch.testing.assert_close(preprocess(gray.expand(-1, -1, -1, 3)), preprocess(gray), atol=1e-5, rtol=0)


def test_luminance_is_that_of_the_cached_crops_of_training_which_are_rounded() -> None:
    served, preprocess = crops(3), Preprocess(color="luminance", normalization="fixed", img_size=112)
    cached = np.stack([cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)[..., None] for crop in served.numpy()])
    torch.testing.assert_close(preprocess(torch.from_numpy(cached)), preprocess(served), atol=1.02 / 255, rtol=0)


def test_normalization_removes_exposure_and_most_contrast_and_keeps_color_and_a_flat_image_flat() -> None:
    dim = crops(2, channels=1) // 3
    preprocess = Preprocess(color="luminance", normalization="per_image", img_size=112)
    torch.testing.assert_close(preprocess(dim + 100), preprocess(dim), atol=1e-4, rtol=0)
    correlated = torch.corrcoef(torch.stack([preprocess(dim * 3).flatten(), preprocess(dim).flatten()]))[0, 1]
    assert float(correlated) > 0.9999
    assert float(preprocess(torch.full((1, 112, 112, 3), 90, dtype=torch.uint8)).abs().max()) < 1e-3
    assert 0.7 < float(preprocess(dim).std()) < float(preprocess(dim * 3).std()) < 1.0
    image = crops(1) // 4 + torch.tensor([150, 80, 20], dtype=torch.uint8)
    red, green, blue = Preprocess(color="RGB", normalization="per_image", img_size=112)(image)[0].mean(dim=(1, 2))
    assert red > green + 0.5 > blue + 1


def test_a_smaller_image_has_the_mean_of_a_fine_pattern() -> None:
    stripes = torch.zeros(1, 112, 112, 3, dtype=torch.uint8)
    stripes[:, :, ::2] = 255
    for img_size in (56, 80):
        pixels = Preprocess(color="luminance", normalization="fixed", img_size=img_size)(stripes)
        assert float(pixels.abs().max()) < 0.5, "aliased stripes are black and white"


def test_the_mean_head_averages_probabilities() -> None:
    network = FaceNetwork(config(**SMALL)).eval()
    with torch.no_grad():
        heads = network(crops(2))
        expected = (heads.class_logits.softmax(-1) + heads.distillation_logits.softmax(-1)) / 2
    torch.testing.assert_close(select_head(heads, "mean").softmax(-1), expected)


def test_rollout_follows_the_token_of_the_selected_head() -> None:
    attention = torch.eye(6).repeat(1, 3, 1, 1)  # two prefix tokens, a 2x2 grid; every token looks at itself
    attention[:, :, 0] = torch.nn.functional.one_hot(torch.tensor(3), 6)  # the class token at the second patch
    attention[:, :, 1] = torch.nn.functional.one_hot(torch.tensor(5), 6)  # the distillation token at the last
    first = torch.eye(6).repeat(1, 3, 1, 1)
    first[:, :, 3] = torch.nn.functional.one_hot(torch.tensor(4), 6)  # the second patch at the third
    torch.testing.assert_close(rollout([first, attention], head="class"), torch.tensor([[[0.0, 0.5], [0.5, 0.0]]]))
    torch.testing.assert_close(rollout([attention], head="distillation"), torch.tensor([[[0.0, 0.0], [0.0, 1.0]]]))
    torch.testing.assert_close(rollout([attention], head="mean"), torch.tensor([[[0.0, 0.5], [0.0, 0.5]]]))
