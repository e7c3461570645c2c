"""Network of a recipe, and its initial weights."""

from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from mien.models.strict import StrictModel

WEIGHT_SUFFIXES: Final = (".safetensors", ".pth", ".pt", ".bin")


class ModelConfig(StrictModel):
    """Configuration of the network; see models/backbones."""

    family: str
    name: str = Field(description="timm's name")
    arch: str | None = Field(
        None, pattern=r"^[a-z0-9_]+$", description="first part of the artifact's name; default: name"
    )
    color: Literal["luminance", "RGB"] = "luminance"
    normalization: Literal["per_image", "imagenet", "fixed"] = "per_image"
    img_size: int = Field(112, ge=16, le=224, description="side of the network's input; 112-pixel crops are resized")
    drop_rate: float = Field(0.0, ge=0, lt=1)
    drop_path_rate: float = Field(0.0, ge=0, lt=1)
    pretrained: bool = False
    scratch_if_unavailable: bool = False
    init_from: Path | None = Field(
        None, description="initial weights: run folder, artifact folder, or state dict (.safetensors, .pth)"
    )
    init_terms: str | None = Field(None, description="license of a weights file; the release inherits it")
    options: dict[str, Any] = Field(default_factory=dict)

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
