"""Service with a tiny model and the built-in detector, in a process of its own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.serving import Server, serving

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
    """A server with short timeouts and a long queue, shared by tests that do not change its state."""
    patience = {"header_timeout_s": 1, "body_timeout_s": 1}
    room = {"max_queue": 500, "max_per_client": 0}
    with serving(tmp_path_factory.mktemp("common"), artifact, detector="builtin", **patience, **room) as server:
        yield server
