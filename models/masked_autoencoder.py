"""Masked autoencoder (He et al. 2022): a transformer encoder, and a light decoder that paints hidden patches."""

from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from models.backbones import UnknownBackbone
from models.network import FaceNetwork


class MaskConfig(BaseModel):
    """What is hidden, and what paints it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    share: float = Field(0.75, gt=0, lt=1, description="of the patches, hidden")
    decoder_width: int = Field(96, ge=16, multiple_of=4)
    decoder_depth: int = Field(2, ge=1)
    decoder_heads: int = Field(3, ge=1)


class MaskedAutoencoder(nn.Module):
    """A face network's transformer as encoder, and a decoder that is discarded afterwards.

    Raises: UnknownBackbone, for a family or stem in which patches cannot be left out.
    """

    positions: Tensor

    def __init__(self, network: FaceNetwork, config: MaskConfig) -> None:
        super().__init__()
        transformer: Any = getattr(network.backbone, "network", None)
        embed: Any = getattr(transformer, "patch_embed", None)
        if not hasattr(transformer, "blocks") or not hasattr(embed, "proj"):
            raise UnknownBackbone(
                "masked autoencoding leaves patches out before the transformer, so it needs model.family deit with "
                "stem patch; a convolutional stem looks across patches"
            )
        self.network, self.share = network, config.share
        self.patch_px: int = embed.patch_size[0]
        self.grid: tuple[int, int] = embed.grid_size
        width, channels = config.decoder_width, embed.proj.in_channels
        self.narrow = nn.Linear(transformer.embed_dim, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        positions = build_sincos2d_pos_embed(list(self.grid), dim=width, interleave_sin_cos=True)
        self.register_buffer("positions", positions[None], persistent=False)
        self.decoder = nn.Sequential(*(Block(width, config.decoder_heads) for _ in range(config.decoder_depth)))
        self.norm = nn.LayerNorm(width)
        self.paint = nn.Linear(width, self.patch_px**2 * channels)
        nn.init.normal_(self.mask_token, std=0.02)

    @property
    def patches(self) -> int:
        """Number of patches of one face."""
        return self.grid[0] * self.grid[1]

    def forward(self, crops: Tensor, noise: Tensor) -> Tensor:
        """Mean squared error on the hidden patches' pixels, each patch normalized; a scalar.

        Args:
            crops: (B, 112, 112, C) uint8.
            noise: (B, patches); the patches with the largest numbers are hidden.
        """
        with torch.autocast(crops.device.type, enabled=False):
            pixels = self.network.preprocess(crops)
        order = noise.argsort(dim=1)
        visible = order[:, : max(1, round(order.shape[1] * (1 - self.share)))]
        painted = self._decode(self._encode(pixels, visible), visible)
        hidden = torch.ones_like(noise).scatter(1, visible, 0.0)  # (B, patches)
        error = (painted.float() - self._targets(pixels)).square().mean(dim=-1)
        return (error * hidden).sum() / hidden.sum()

    def _encode(self, pixels: Tensor, visible: Tensor) -> Tensor:
        transformer: Any = self.network.backbone.network
        # timm adds prefix tokens and positions, whatever kind they are; patches are left out only then
        tokens: Tensor = transformer.norm_pre(transformer._pos_embed(transformer.patch_embed(pixels)))
        prefix = transformer.num_prefix_tokens
        seen = torch.cat([tokens[:, :prefix], _take(tokens[:, prefix:], visible)], dim=1)
        return transformer.norm(transformer.blocks(seen))  # type: ignore[no-any-return]  # (B, prefix + visible, dim)

    def _decode(self, encoded: Tensor, visible: Tensor) -> Tensor:
        prefix = encoded.shape[1] - visible.shape[1]
        narrow = self.narrow(encoded)
        batch, width = narrow.shape[0], narrow.shape[2]
        patches = self.mask_token.to(narrow.dtype).repeat(batch, self.patches, 1)
        patches = patches.scatter(1, visible[..., None].expand(-1, -1, width), narrow[:, prefix:])
        tokens = torch.cat([narrow[:, :prefix], patches + self.positions.to(narrow.dtype)], dim=1)
        return self.paint(self.norm(self.decoder(tokens)[:, prefix:]))  # type: ignore[no-any-return]

    def _targets(self, pixels: Tensor) -> Tensor:
        """(B, patches, values) float32, each patch with mean 0 and variance 1; He et al. 2022, section 3."""
        patches = nn.functional.unfold(pixels, self.patch_px, stride=self.patch_px).transpose(1, 2)
        mean, variance = patches.mean(dim=-1, keepdim=True), patches.var(dim=-1, keepdim=True)
        return (patches - mean) / (variance + 1e-6).sqrt()


def _take(tokens: Tensor, chosen: Tensor) -> Tensor:
    return tokens.gather(1, chosen[..., None].expand(-1, -1, tokens.shape[2]))  # (B, chosen, dim)
