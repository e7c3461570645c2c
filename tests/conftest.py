"""Fixtures of all tests."""

from pathlib import Path

import pytest

from tests.support import tiny_artifact


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny artifact; a test that changes it writes its own."""
    return tiny_artifact(tmp_path_factory.mktemp("artifacts") / "tiny.test")
