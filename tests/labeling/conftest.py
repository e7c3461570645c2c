"""Fixtures of the labeling tests."""

from tests.integration.labeling.conftest import mien, photos

__all__ = ["mien", "photos"]
