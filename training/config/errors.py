"""Error of recipes."""

from data.errors import MienError


class RecipeError(MienError, ValueError):
    """An invalid recipe."""
