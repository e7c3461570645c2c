import numpy as np
import pytest
import torch

from data.contract import CROP_PX
from models.backbones import BackboneConfig, UnknownBackbone, create_backbone, families
from models.network import FaceNetwork, Preprocess, select_head
from models.rollout import recorded_attention, rollout

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2}
DEIT = "deit_tiny_distilled_patch16_224"


def crops(count: int, *, channels: int = 3, seed: int = 0) -> torch.Tensor:
    shape = (count, CROP_PX, CROP_PX, channels)
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def config(name: str, *, input_px: int = 112, channels: int = 1, **options: object) -> BackboneConfig:
    return BackboneConfig(name=name, classes=7, channels=channels, input_px=input_px, options=dict(options))


def test_every_family_of_the_folder_refuses_a_name_that_timm_does_not_have() -> None:
    assert {"cnn", "deit"} <= set(families())
    for family in families():
        with pytest.raises(UnknownBackbone, match="no model 'nosuchnet'"):
            create_backbone(family, config("nosuchnet"))


def test_an_unknown_family_names_those_there_are() -> None:
    with pytest.raises(UnknownBackbone, match="cnn, deit"):
        create_backbone("mlp", config("resnet18"))


@pytest.mark.parametrize(
    ("options", "input_px", "tokens"),
    [
        ({"patch_px": 16}, 112, 49),
        ({"patch_px": 8}, 112, 196),
        ({"patch_px": 8, "stem": "conv"}, 56, 49),
        ({"patch_px": 8, "stem": "hybrid", "stem_widths": [8, 16], "stem_blocks": [1, 1, 1]}, 56, 49),
        ({"patch_px": 16, "position": "sinusoidal"}, 112, 49),
        ({"patch_px": 16, "position": "none"}, 112, 49),
    ],
)
def test_a_distilled_student_has_two_heads_over_its_patches(
    options: dict[str, object], input_px: int, tokens: int
) -> None:
    network = create_backbone("deit", config(DEIT, input_px=input_px, **SMALL, **options)).eval()
    assert network.network.patch_embed.num_patches == tokens
    heads = network(torch.randn(2, 1, input_px, input_px))
    assert heads.class_logits.shape == heads.distillation_logits.shape == (2, 7)
    assert not torch.equal(heads.class_logits, heads.distillation_logits)


def test_sinusoidal_positions_are_not_trained_and_differ_by_place() -> None:
    network = create_backbone("deit", config(DEIT, position="sinusoidal", **SMALL)).network
    assert not network.pos_embed.requires_grad
    places = network.pos_embed[0, network.num_prefix_tokens :]
    assert len(torch.unique(places, dim=0)) == 49


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
def test_without_positions_shuffled_patches_give_the_same_answer(name: str) -> None:
    backbone = create_backbone("deit", config(name, position="none", **SMALL)).eval()
    picture = torch.rand(1, 1, 112, 112)
    patches = picture.unfold(2, 16, 16).unfold(3, 16, 16).reshape(49, 16, 16)
    shuffled = patches[torch.randperm(49)].reshape(7, 7, 16, 16).permute(0, 2, 1, 3).reshape(1, 1, 112, 112)
    assert not torch.equal(shuffled, picture)
    torch.testing.assert_close(backbone(shuffled).class_logits, backbone(picture).class_logits)
    assert not any(parameter.requires_grad for key, parameter in backbone.named_parameters() if "pos_embed" in key)


def test_a_stem_that_does_not_reach_the_patch_size_says_how_many_steps_it_takes() -> None:
    options = {"patch_px": 8, "stem": "hybrid", "stem_widths": [8], "stem_blocks": [1, 1]}
    with pytest.raises(UnknownBackbone, match="3 stride-2 convolutions"):
        create_backbone("deit", config(DEIT, input_px=56, **SMALL, **options))


def test_a_gray_picture_in_rgb_is_the_picture_in_luminance() -> None:
    gray = crops(3, channels=1)
    preprocess = Preprocess(colour="luminance", normalisation="per_image", input_px=56)
    torch.testing.assert_close(preprocess(gray.expand(-1, -1, -1, 3)), preprocess(gray), atol=1e-5, rtol=0)


def test_luminance_weighs_green_most_as_bt_601_says() -> None:
    preprocess = Preprocess(colour="luminance", normalisation="per_image", input_px=112)
    assert preprocess.luminance.tolist() == pytest.approx([0.299, 0.587, 0.114])


def test_exposure_does_not_change_what_the_network_sees_and_contrast_hardly() -> None:
    dim = crops(2, channels=1) // 3
    preprocess = Preprocess(colour="luminance", normalisation="per_image", input_px=112)
    torch.testing.assert_close(preprocess(dim + 100), preprocess(dim), atol=1e-4, rtol=0)
    correlated = torch.corrcoef(torch.stack([preprocess(dim * 3).flatten(), preprocess(dim).flatten()]))[0, 1]
    assert float(correlated) > 0.9999
    assert 0.7 < float(preprocess(dim).std()) < float(preprocess(dim * 3).std()) < 1.0


def test_a_flat_picture_stays_flat() -> None:
    preprocess = Preprocess(colour="luminance", normalisation="per_image", input_px=112)
    assert float(preprocess(torch.full((1, 112, 112, 3), 90, dtype=torch.uint8)).abs().max()) < 1e-3


def test_the_mean_head_averages_probabilities() -> None:
    network = FaceNetwork("deit", config(DEIT, **SMALL), colour="luminance").eval()
    with torch.no_grad():
        heads = network(crops(2))
        expected = (heads.class_logits.softmax(-1) + heads.distillation_logits.softmax(-1)) / 2
    torch.testing.assert_close(select_head(heads, "mean").softmax(-1), expected)


def test_a_cnn_has_no_distillation_head_and_says_so() -> None:
    network = FaceNetwork("cnn", config("resnet10t", input_px=32), colour="luminance").eval()
    with torch.no_grad(), pytest.raises(ValueError, match="no distillation token"):
        select_head(network(crops(1)), "distillation")


def test_recording_attention_does_not_change_the_answer_and_rows_sum_to_one() -> None:
    network = FaceNetwork("deit", config(DEIT, **SMALL), colour="luminance").eval()
    with torch.no_grad():
        expected = network(crops(2)).class_logits
        with recorded_attention(network.backbone) as attentions:
            found = network(crops(2)).class_logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    assert [tuple(attention.shape) for attention in attentions] == [(2, 2, 51, 51)] * 2
    torch.testing.assert_close(attentions[0].sum(-1), torch.ones(2, 2, 51), atol=1e-5, rtol=0)


def test_rollout_follows_the_token_of_the_chosen_head_to_the_patch_it_looked_at() -> None:
    attention = torch.eye(6).repeat(1, 3, 1, 1)  # two prefix tokens, a 2x2 grid; every token looks at itself
    attention[:, :, 0] = torch.nn.functional.one_hot(torch.tensor(3), 6)  # the class token at the second patch
    attention[:, :, 1] = torch.nn.functional.one_hot(torch.tensor(5), 6)  # the distillation token at the last
    torch.testing.assert_close(rollout([attention] * 2, head="class"), torch.tensor([[[0.0, 1.0], [0.0, 0.0]]]))
    torch.testing.assert_close(rollout([attention], head="distillation"), torch.tensor([[[0.0, 0.0], [0.0, 1.0]]]))
    torch.testing.assert_close(rollout([attention], head="mean"), torch.tensor([[[0.0, 0.5], [0.0, 0.5]]]))
