"""Error of recipes."""

from mien.data.errors import MienError


class RecipeError(MienError, ValueError):
    """An invalid recipe."""
