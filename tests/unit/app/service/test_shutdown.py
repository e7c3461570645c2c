"""Closing of a port: waiting connections are served, later ones refused, and none lost in between."""

import asyncio
import socket
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import uvicorn

from mien.app.service import shutdown

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


@pytest.mark.anyio
async def test_connections_in_the_queue_are_answered_when_the_port_closes_and_later_ones_are_refused() -> None:
    outcomes: list[str] = []
    server = uvicorn.Server(uvicorn.Config(_answer, port=0, lifespan="off", log_level="error"))
    running = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    address = server.servers[0].sockets[0].getsockname()
    early = [threading.Thread(target=_ask, args=(address, outcomes)) for _ in range(5)]
    for thread in early:
        thread.start()
    time.sleep(0.3)  # noqa: ASYNC251  # the event loop accepts none of them
    await shutdown.close_port(server)
    _ask(address, outcomes)
    server.should_exit = True
    await running
    assert sorted(outcomes) == ["answered"] * 5 + ["refused"]
