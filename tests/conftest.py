"""Fixtures of all tests."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest

from mien.models.manifest import Agreement
from tests.support import tiny_artifact
from tests.support.skips import pytest_sessionfinish  # noqa: F401  # a hook of pytest


@pytest.fixture(scope="session", autouse=True)
def certificates_are_read_once() -> Iterator[None]:
    """Each `httpx.get` would read those of all authorities, which takes 25 ms, and no test sends a request by TLS."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("httpx._transports.default.create_ssl_context", cache(httpx.create_ssl_context))
        yield


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The event loop of coroutines that are tests."""
    return "asyncio"


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny artifact that corrects for rare classes, softens, expects votes, and calls faces small below 200 pixels.

    A test that changes it writes its own.
    """
    folder = tmp_path_factory.mktemp("artifacts") / "tiny.test"
    # expected votes that are flatter than the probabilities, and not in the same order
    agreement = Agreement(temperature=1.6, offsets=(0.3, -0.2, -0.6, 0.5, 0.1, -0.4, 0.3))
    return tiny_artifact(folder, agreement=agreement)
