"""Network of a recipe, and its initial weights."""

from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator

from mien.models.backbones import BackboneConfig

WEIGHT_SUFFIXES: Final = (".safetensors", ".pth", ".pt", ".bin")


class ModelConfig(BackboneConfig):
    """Configuration of the network and of its initial weights."""

    arch: str | None = Field(
        None, pattern=r"^[a-z0-9_]+$", description="first part of the artifact's name; default: name"
    )
    init_from: Path | None = Field(
        None, description="initial weights: run folder, artifact folder, or state dict (.safetensors, .pth)"
    )
    init_terms: str | None = Field(None, description="license of a weights file; the release inherits it")

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.pretrained and self.init_from is not None:
            raise ValueError("pretrained and init_from both set the initial weights: choose one")
        if self.init_from is not None and self.init_from.suffix in WEIGHT_SUFFIXES and not self.init_terms:
            raise ValueError(
                f"init_from {self.init_from} is a file of third-party weights: name their publisher and license in "
                "init_terms, as the release inherits the license"
            )
        return self
