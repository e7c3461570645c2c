"""Vision transformers, used as students: any timm ViT or DeiT with a patch, convolutional or hybrid stem.

Options: `patch_px` (side of a patch, 16 by default), `stem` (patch, conv, hybrid), `stem_widths` and `stem_blocks` for
the hybrid, `depth`, and all options of timm's VisionTransformer.
Sources: Dosovitskiy et al. 2021 (ViT), Touvron et al. 2021 (DeiT), Xiao et al. 2021 (convolutional stem).
"""

from functools import partial
from typing import Any, Final, cast

import torch
from torch import Tensor, nn

from mien.models.backbones import BackboneConfig, UnknownBackbone, create_timm

_STEMS: Final = ("patch", "conv", "hybrid")


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al. 2016); width and size are unchanged."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(x + self.second_norm(self.second(y)))


class ConvolutionalStem(nn.Module):
    """Patch embedding by stride-2 convolutions, each followed by residual blocks; replaces timm's PatchEmbed.

    Without blocks it is the stem of Xiao et al.; with blocks, a hybrid (ViT section 3.1: patches of CNN features).
    """

    def __init__(
        self,
        img_size: int,
        patch_size: int,
        in_chans: int,
        embed_dim: int,
        *,
        widths: tuple[int, ...],
        blocks: tuple[int, ...],
        **_unused: Any,
    ) -> None:
        super().__init__()
        steps = patch_size.bit_length() - 1
        if 2**steps != patch_size or len(widths) != steps - 1 or len(blocks) != steps:
            raise UnknownBackbone(
                f"a stem for {patch_size}-px patches has {steps} stride-2 convolutions: {steps - 1} stem_widths (the "
                f"last is the embedding's) and {steps} stem_blocks; found {len(widths)} and {len(blocks)}"
            )
        # timm reads these of a PatchEmbed: sizes in pixels, and the grid of patches.
        side = img_size // patch_size
        self.img_size, self.patch_size = (img_size, img_size), (patch_size, patch_size)
        self.grid_size, self.num_patches = (side, side), side * side
        layers: list[nn.Module] = []
        width_in = in_chans
        for width, count in zip((*widths, embed_dim), blocks, strict=True):
            layers += [nn.Conv2d(width_in, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
            layers += [ResidualBlock(width) for _ in range(count)]
            width_in = width
        self.layers = nn.Sequential(*layers)

    def feat_ratio(self, as_scalar: bool = True) -> int | tuple[int, int]:
        """Input pixels per token; part of timm's interface."""
        return self.patch_size[0] if as_scalar else self.patch_size

    def forward(self, x: Tensor) -> Tensor:  # (B, C, P, P)
        return cast(Tensor, self.layers(x)).flatten(2).transpose(1, 2)  # (B, tokens, embed_dim)


def create(config: BackboneConfig, num_classes: int) -> nn.Module:
    """Build a timm ViT/DeiT at `config.img_size`. Raises: UnknownBackbone, for invalid options."""
    options = dict(config.options)
    stem = options.pop("stem", "patch")
    if stem not in _STEMS:
        raise UnknownBackbone(f"stem {stem!r}: expected one of {', '.join(_STEMS)}")
    patch_px = int(options.pop("patch_px", 16))
    if patch_px < 1 or config.img_size % patch_px:
        raise UnknownBackbone(f"patch_px {patch_px} does not divide img_size {config.img_size}")
    steps = patch_px.bit_length() - 1
    widths = options.pop("stem_widths", [192 >> (steps - 1 - step) for step in range(steps - 1)])
    blocks = options.pop("stem_blocks", [0 if stem == "conv" else 1] * steps)
    if stem != "patch":
        options["embed_layer"] = partial(ConvolutionalStem, widths=tuple(widths), blocks=tuple(blocks))
    return create_timm(config, num_classes, img_size=config.img_size, patch_size=patch_px, **options)
