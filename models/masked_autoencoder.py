"""Masked autoencoder (He et al. 2022): a transformer encoder and a light decoder that reconstructs masked patches."""

from typing import Any, Self

import torch
from pydantic import Field, model_validator
from timm.layers.pos_embed_sincos import build_sincos2d_pos_embed
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from mien.models.backbones import UnknownBackbone
from mien.models.network import FaceNetwork
from mien.models.strict import StrictModel


class MaskConfig(StrictModel):
    """Mask ratio and decoder size."""

    mask_ratio: float = Field(0.75, gt=0, lt=1, description="share of the patches that are masked")
    decoder_width: int = Field(96, ge=16, multiple_of=4)
    decoder_depth: int = Field(2, ge=1)
    decoder_heads: int = Field(3, ge=1)

    @model_validator(mode="after")
    def _heads_share_the_width(self) -> Self:
        if self.decoder_width % self.decoder_heads:
            raise ValueError(f"decoder_width {self.decoder_width}: expected a multiple of decoder_heads")
        return self


class MaskedAutoencoder(nn.Module):
    """A face network's transformer as the encoder, and a decoder that is discarded after pretraining.

    Raises: UnknownBackbone, for a family or stem in which patches cannot be left out.
    """

    positions: Tensor

    def __init__(self, network: FaceNetwork, config: MaskConfig) -> None:
        super().__init__()
        transformer: Any = getattr(network.backbone, "network", None)
        embed: Any = getattr(transformer, "patch_embed", None)
        if not hasattr(transformer, "blocks") or not hasattr(embed, "proj"):
            raise UnknownBackbone(
                "masked autoencoding removes patches before the transformer, so it needs model.family deit with "
                "stem patch; a convolutional stem mixes patches"
            )
        self.network, self.mask_ratio = network, config.mask_ratio
        self.patch_px: int = embed.patch_size[0]
        self.grid: tuple[int, int] = embed.grid_size
        width, channels = config.decoder_width, embed.proj.in_channels
        self.decoder_embed = nn.Linear(transformer.embed_dim, width)
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        positions = build_sincos2d_pos_embed(list(self.grid), dim=width, interleave_sin_cos=True)
        self.register_buffer("positions", positions[None], persistent=False)
        self.decoder = nn.Sequential(*(Block(width, config.decoder_heads) for _ in range(config.decoder_depth)))
        self.norm = nn.LayerNorm(width)
        self.decoder_pred = nn.Linear(width, self.patch_px**2 * channels)
        nn.init.normal_(self.mask_token, std=0.02)

    @property
    def patches(self) -> int:
        """Number of patches of one face."""
        return self.grid[0] * self.grid[1]

    def forward(self, crops: Tensor, noise: Tensor) -> Tensor:
        """Mean squared error on the normalized pixels of masked patches; a scalar.

        Args:
            crops: (B, 112, 112, C) uint8.
            noise: (B, patches); the patches with the largest values are masked.
        """
        with torch.autocast(crops.device.type, enabled=False):
            pixels = self.network.preprocess(crops)
        order = noise.argsort(dim=1)
        count = round(order.shape[1] * (1 - self.mask_ratio))
        visible = order[:, : min(max(1, count), order.shape[1] - 1)]
        predicted = self._decode(self._encode(pixels, visible), visible)
        masked = torch.ones_like(noise).scatter(1, visible, 0.0)  # (B, patches)
        error = (predicted.float() - self._targets(pixels)).square().mean(dim=-1)
        return (error * masked).sum() / masked.sum()

    def _encode(self, pixels: Tensor, visible: Tensor) -> Tensor:
        transformer: Any = self.network.backbone.network
        # timm adds prefix tokens and positions of any kind first; patches are removed after that
        tokens: Tensor = transformer.norm_pre(transformer._pos_embed(transformer.patch_embed(pixels)))
        prefix = transformer.num_prefix_tokens
        chosen = visible[..., None].expand(-1, -1, tokens.shape[2])
        kept = torch.cat([tokens[:, :prefix], tokens[:, prefix:].gather(1, chosen)], dim=1)
        return transformer.norm(transformer.blocks(kept))  # type: ignore[no-any-return]  # (B, prefix + visible, dim)

    def _decode(self, encoded: Tensor, visible: Tensor) -> Tensor:
        prefix = encoded.shape[1] - visible.shape[1]
        narrow = self.decoder_embed(encoded)
        batch, width = narrow.shape[0], narrow.shape[2]
        patches = self.mask_token.to(narrow.dtype).repeat(batch, self.patches, 1)
        patches = patches.scatter(1, visible[..., None].expand(-1, -1, width), narrow[:, prefix:])
        tokens = torch.cat([narrow[:, :prefix], patches + self.positions.to(narrow.dtype)], dim=1)
        return self.decoder_pred(self.norm(self.decoder(tokens)[:, prefix:]))  # type: ignore[no-any-return]

    def _targets(self, pixels: Tensor) -> Tensor:
        """(B, patches, values) float32, each patch with mean 0 and variance 1; He et al. 2022, section 3."""
        patches = nn.functional.unfold(pixels, self.patch_px, stride=self.patch_px).transpose(1, 2)
        mean, variance = patches.mean(dim=-1, keepdim=True), patches.var(dim=-1, keepdim=True)
        return (patches - mean) / (variance + 1e-6).sqrt()
