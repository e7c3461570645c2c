"""Vision transformers: heads, position embeddings and stems."""

import pytest
import torch

from mien.models.backbones import create_backbone
from tests.support.models import DEIT, SMALL, config


@pytest.mark.parametrize(
    ("options", "img_size", "tokens"),
    [
        ({"patch_px": 16}, 112, 49),
        ({"patch_px": 8}, 112, 196),
        ({"patch_px": 8, "stem": "conv"}, 56, 49),
        ({"patch_px": 8, "stem": "hybrid", "stem_widths": [8, 16], "stem_blocks": [1, 1, 1]}, 56, 49),
    ],
)
def test_a_distilled_student_has_two_heads_over_its_patches(
    options: dict[str, object], img_size: int, tokens: int
) -> None:
    network = create_backbone(config(DEIT, img_size=img_size, **SMALL, **options)).eval()
    assert network.network.patch_embed.num_patches == tokens
    heads = network(torch.randn(2, 1, img_size, img_size))
    assert heads.class_logits.shape == heads.distillation_logits.shape == (2, 7)
    assert not torch.equal(heads.class_logits, heads.distillation_logits)


def test_a_distilled_student_drops_out_before_both_heads() -> None:
    pixels = torch.randn(2, 1, 112, 112)
    network = create_backbone(config(**SMALL).model_copy(update={"drop_rate": 0.5})).train()
    network.network.pos_drop.p = 0.0
    first, second = network(pixels), network(pixels)
    assert not torch.equal(first.class_logits, second.class_logits)
    assert not torch.equal(first.distillation_logits, second.distillation_logits)
    assert torch.equal(network.eval()(pixels).class_logits, network(pixels).class_logits)


def shuffled(pixels: torch.Tensor, patch_px: int) -> torch.Tensor:
    """The same patches in another order, (B, C, P, P)."""
    patches = torch.nn.functional.unfold(pixels, patch_px, stride=patch_px)
    order = torch.randperm(patches.shape[2], generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.fold(patches[..., order], pixels.shape[2:], patch_px, stride=patch_px)


@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "deit_tiny_distilled_patch16_224"])
@pytest.mark.parametrize(("position", "same"), [("none", True), ("learned", False), ("sinusoidal", False)])
def test_only_position_embeddings_make_the_order_of_patches_matter(name: str, position: str, same: bool) -> None:
    torch.manual_seed(0)
    network = create_backbone(config(name, img_size=56, patch_px=8, position=position, **SMALL)).eval()
    if position == "learned":  # timm initializes it with a standard deviation of 0.02, far from trained values
        torch.nn.init.normal_(network.network.pos_embed)
    elif network.network.pos_embed is not None:
        assert not network.network.pos_embed.requires_grad
    pixels = torch.randn(2, 1, 56, 56)
    with torch.no_grad():
        before, after = network(pixels).class_logits, network(shuffled(pixels, 8)).class_logits
    assert torch.allclose(before, after, atol=1e-5) is same
