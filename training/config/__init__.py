"""Recipes, the YAML files that configure runs: schema and reading."""

from mien.training.config.reading import parse_as, read_as, read_recipe
from mien.training.config.schema import (
    DATA_DIR_VARIABLE,
    WEIGHT_SUFFIXES,
    DataSource,
    DistillationConfig,
    FaceRecipe,
    FoldConfig,
    LossConfig,
    MixConfig,
    ModelConfig,
    OptimConfig,
    Recipe,
    RecipeError,
    RunRecipe,
    RuntimeConfig,
    Sampler,
    default_root,
)

__all__ = [
    "DATA_DIR_VARIABLE",
    "WEIGHT_SUFFIXES",
    "DataSource",
    "DistillationConfig",
    "FaceRecipe",
    "FoldConfig",
    "LossConfig",
    "MixConfig",
    "ModelConfig",
    "OptimConfig",
    "Recipe",
    "RecipeError",
    "RunRecipe",
    "RuntimeConfig",
    "Sampler",
    "default_root",
    "parse_as",
    "read_as",
    "read_recipe",
]
