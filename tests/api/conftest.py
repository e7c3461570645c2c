"""Fixtures of the API tests."""

from tests.support.app import classifier, connect

__all__ = ["classifier", "connect"]
