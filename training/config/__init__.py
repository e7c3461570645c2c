"""Recipes, the YAML files that configure runs: schema and reading."""

from training.config.data import DATA_DIR_VARIABLE, DataSource, FoldConfig, Sampler, default_root
from training.config.errors import RecipeError
from training.config.losses import DistillationConfig, DistillationMode, LossConfig, MixConfig
from training.config.model import WEIGHT_SUFFIXES, ModelConfig
from training.config.optim import OptimConfig, RuntimeConfig
from training.config.reading import parse_as, read_as, read_recipe
from training.config.recipe import FaceRecipe, Recipe, RunRecipe

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
