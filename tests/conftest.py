"""Fixtures of all tests."""

import gc
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import httpx
import pytest

from tests.support import drawn_agreement, tiny_artifact
from tests.support.skips import pytest_sessionfinish  # noqa: F401  # a hook of pytest


def pytest_configure() -> None:
    """Look for garbage only after the imports, and not among what they keep: a tenth of the time of collecting."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


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
    return tiny_artifact(folder, agreement=drawn_agreement())
