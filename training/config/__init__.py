"""Recipes, the YAML files that configure runs: schema and reading."""

from mien.training.config.data import DATA_DIR_VARIABLE, DataSource, FoldConfig, Sampler, default_root
from mien.training.config.errors import RecipeError
from mien.training.config.losses import DistillationConfig, DistillationMode, LossConfig, MixConfig
from mien.training.config.model import WEIGHT_SUFFIXES, ModelConfig
from mien.training.config.optim import OptimConfig, RuntimeConfig
from mien.training.config.reading import parse_as, read_as, read_recipe
from mien.training.config.recipe import FaceRecipe, Recipe, RunRecipe

__all__ = [
    "DATA_DIR_VARIABLE",
    "WEIGHT_SUFFIXES",
    "DataSource",
    "DistillationConfig",
    "DistillationMode",
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
