"""Fixtures of the inference tests."""

from tests.support.app import classifier

__all__ = ["classifier"]
