"""Fixtures of the API tests."""

from tests.support.app import classifier, client, connect

__all__ = ["classifier", "client", "connect"]
