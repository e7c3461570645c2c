"""Closing of a port: waiting connections are served, later ones refused, and none lost in between."""

import asyncio
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvicorn

from mien.app.service import shutdown
from tests.support import eventually

_REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def _answer(_scope: object, _receive: object, send: Callable[[dict[str, object]], Awaitable[None]]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _ask(address: tuple[str, int], outcomes: list[str]) -> None:
    try:
        with socket.create_connection(address, timeout=20) as client:
            client.sendall(_REQUEST)
            outcomes.append("answered" if client.recv(100).startswith(b"HTTP/1.1 200") else "lost")
    except ConnectionRefusedError:
        outcomes.append("refused")
    except OSError:
        outcomes.append("lost")


@pytest.mark.skipif(
    sys.platform != "linux", reason="the port is closed for new connections by a socket filter of Linux"
)
@pytest.mark.anyio
async def test_a_connection_that_arrives_while_the_port_closes_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    outcomes: list[str] = []
    queued = shutdown._queued

    def slowly(listener: socket.socket) -> list[socket.socket]:
        """Take the queue, as a busy process would: with a pause between the last connection and closing."""
        duplicate = listener.dup()
        connections = queued(listener)
        late = threading.Thread(target=_ask, args=(duplicate.getsockname(), outcomes))
        late.start()
        time.sleep(0.3)
        duplicate.close()
        return connections

    monkeypatch.setattr(shutdown, "_queued", slowly)
    server = uvicorn.Server(uvicorn.Config(_answer, port=0, lifespan="off", log_level="error"))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    await shutdown.close_port(server)
    server.should_exit = True
    await running
    eventually(lambda: outcomes == ["refused"], failure=lambda: outcomes)


def test_one_of_several_workers_that_ends_leaves_the_port_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert not shutdown.is_ending()
    shutdown.announce_end()
    assert shutdown.is_ending()
