"""Fixtures of the live tests."""

from tests.support.app import classifier

__all__ = ["classifier"]
