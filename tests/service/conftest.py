"""Service with a tiny model: in this process with drawn faces, or in its own with the built-in detector."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.app import classifier, client, connect
from tests.support.serving import Server, serving

__all__ = ["classifier", "client", "connect"]

Serve = Callable[..., Server]


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory, artifact: Path) -> Iterator[Serve]:
    """Start a server with the given settings; stops it after the test."""
    with ExitStack() as servers:

        def start(**settings: object) -> Server:
            chosen = {"artifact": artifact, "detector": "builtin", **settings}
            return servers.enter_context(serving(tmp_path_factory.mktemp("server"), **chosen))

        yield start


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory, artifact: Path) -> Iterator[Server]:
    """A server with a long queue, shared by tests that do not change its state."""
    with serving(tmp_path_factory.mktemp("common"), artifact, detector="builtin", max_queue=500) as server:
        yield server
