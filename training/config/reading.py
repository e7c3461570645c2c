"""Reading of recipes: YAML, overrides, and errors that suggest a known key."""

import difflib
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError

from mien.training.config.schema import Recipe, RecipeError

S = TypeVar("S", bound=BaseModel)


def read_recipe(path: Path, overrides: list[str] | None = None) -> Recipe:
    """Read a YAML recipe and apply `key.sub=value` overrides. Raises: RecipeError."""
    return read_as(Recipe, path, overrides or [])


def read_as(schema: type[S], path: Path, overrides: list[str]) -> S:
    """Read a YAML recipe with any schema, like `read_recipe`. Raises: RecipeError."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(f"recipe {path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe {path}: not YAML ({error})") from error
    if not isinstance(values, dict):
        raise RecipeError(f"recipe {path}: expected keys and values, found {type(values).__name__}")
    for override in overrides:
        apply_override(values, override)
    return parse_as(schema, values, origin=str(path))


def parse_as(schema: type[S], values: dict[str, Any], *, origin: str) -> S:
    """Validate a recipe. Raises: RecipeError; for an unknown key, it suggests a known one."""
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        lines = [_explain(schema, problem) for problem in error.errors()]
        raise RecipeError(f"recipe {origin}: " + "; ".join(lines)) from error


def apply_override(values: dict[str, Any], override: str) -> None:
    """Apply a `key.sub=value` override in place. Raises: RecipeError."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"override {override!r}: expected key=value, for example optim.learning_rate=3e-4")
    if not text:
        raise RecipeError(f"override {override!r}: no value after the equals sign; use null for none")
    *parents, last = key.split(".")
    place: Any = values
    for parent in parents:
        place = place[_index(place, parent, override)] if isinstance(place, list) else place.setdefault(parent, {})
        if not isinstance(place, dict | list):
            raise RecipeError(f"override {override!r}: {parent} is {place!r} in the recipe and has no {last}")
    place[_index(place, last, override) if isinstance(place, list) else last] = _scalar(text, override)


def _index(items: list[Any], text: str, override: str) -> int:
    if text.isdecimal() and int(text) < len(items):
        return int(text)
    raise RecipeError(f"override {override!r}: {text!r} is not an index of this list, expected 0 to {len(items) - 1}")


def _scalar(text: str, override: str) -> Any:
    if "e" in text.lower():  # YAML reads 1e-3 as text
        with suppress(ValueError):
            return float(text)
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"override {override!r}: {text!r} is not a YAML value") from error


def _explain(schema: type[BaseModel], problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] not in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{where}: {problem['msg']}"
    known = _known_keys(schema, problem["loc"][:-1])
    nearest = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1, cutoff=0.4)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known: {', '.join(known)}"
    return f"unknown key {where!r}: {hint}"


def _known_keys(schema: Any, path: tuple[Any, ...]) -> list[str]:
    """Field names at a path in a schema of models, dataclasses or tuples of them."""
    for part in path:
        if isinstance(part, str):
            annotation: Any = schema.model_fields[part].annotation
            schema = next(iter(get_args(annotation)), annotation)
    return sorted(schema.model_fields if hasattr(schema, "model_fields") else schema.__dataclass_fields__)
