"""Fixtures of all tests."""

from pathlib import Path

import pytest

from tests.support import drawn_conditions, tiny_artifact


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny artifact that calls faces small below 200 pixels; a test that changes it writes its own."""
    folder = tmp_path_factory.mktemp("artifacts") / "tiny.test"
    return tiny_artifact(folder, conditions=drawn_conditions(small=200))
