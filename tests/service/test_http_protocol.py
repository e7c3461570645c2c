"""Streams after the upgrade of their connection, with a small application."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final

import pytest
import uvicorn

from mien.app.service.http_protocol import STATE_KEY, BoundedProtocol, StreamProtocol
from mien.app.service.metrics import Metrics
from mien.app.settings import Settings

UPGRADE: Final = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
TIMEOUT_S: Final = 1
PING: Final = bytes([0x89, 0x80, 0, 0, 0, 0])  # masked with zeros, empty
LARGE: Final = bytes(16_000_000)


async def _app(scope: dict[str, Any], receive: Callable[[], Any], send: Callable[[Any], Any]) -> None:
    if scope["type"] == "lifespan":
        settings = Settings(header_timeout_s=TIMEOUT_S)
        scope["state"][STATE_KEY] = SimpleNamespace(settings=settings, metrics=Metrics())
    while (message := await receive())["type"] not in ("websocket.disconnect", "lifespan.shutdown"):
        if message["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})
        elif message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message.get("bytes") is not None:
            await send({"type": "websocket.send", "bytes": LARGE})
        elif message.get("text") is not None:
            await send({"type": "websocket.close", "code": 1003})


@pytest.fixture
def client() -> Iterator[socket.socket]:
    """A connection to a server that closes idle connections after a second."""
    config = uvicorn.Config(
        _app,
        port=0,
        http=BoundedProtocol,
        ws=StreamProtocol,
        ws_max_size=1000,
        timeout_keep_alive=TIMEOUT_S,
        timeout_graceful_shutdown=1,
        log_config=None,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    with socket.socket() as client:
        client.settimeout(10)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(server.servers[0].sockets[0].getsockname())
        yield client
    server.should_exit = True
    thread.join()


def _open(client: socket.socket) -> None:
    client.sendall(UPGRADE + b"\r\n")
    assert client.recv(4096).startswith(b"HTTP/1.1 101")


def test_a_stream_is_not_closed_as_an_idle_connection(client: socket.socket) -> None:
    _open(client)
    time.sleep(2 * TIMEOUT_S)
    client.sendall(PING)
    assert client.recv(10) == bytes([0x8A, 0])


@pytest.mark.parametrize(
    "rest",
    [
        b"Cookie: " + 9000 * b"a" + b"\r\n\r\n",
        b"Content-Length: 1\r\n\r\na",
        b"Sec-WebSocket-Key: second\r\n\r\n",
        b"Sec-WebSocket-Protocol: \xff\r\n\r\n",
        b"Sec-WebSocket-Protocol: ,,\r\n\r\n",
    ],
    ids=["a long header", "a body", "two keys", "a binary protocol", "no protocol"],
)
def test_an_upgrade_that_websockets_does_not_accept_is_refused(
    client: socket.socket, rest: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    client.sendall(UPGRADE + rest)
    response = client.recv(4096)
    assert response.startswith(b"HTTP/1.1 400")
    assert b'"urn:mien:problem:bad-request"' in response
    assert b"x-request-id: " in response
    assert client.recv(1) == b""
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("rest", "problem"),
    [(b"Content-Length: 9\r\n\r\nGET / HTT", b"bad-request"), (b"\r\n", b"method-not-allowed")],
    ids=["with a body", "without"],
)
def test_a_post_cannot_become_a_stream(client: socket.socket, rest: bytes, problem: bytes) -> None:
    client.sendall(UPGRADE.replace(b"GET", b"POST") + rest)
    assert b'"urn:mien:problem:%s"' % problem in client.recv(4096)
    assert client.recv(1) == b""


def test_a_stream_that_does_not_read_is_aborted(client: socket.socket) -> None:
    _open(client)
    client.sendall(bytes([0x82, 0x80, 0, 0, 0, 0]))
    time.sleep(3 * TIMEOUT_S)
    received = 0
    with suppress(ConnectionError):
        while part := client.recv(1 << 20):
            received += len(part)
    assert received < len(LARGE), "what was in buffers"


def test_text_that_is_not_utf8_closes_a_stream_without_a_traceback(
    client: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    _open(client)
    client.sendall(bytes([0x81, 0x81, 0, 0, 0, 0, 0xFF]))
    assert client.recv(10) == bytes([0x88, 2]) + (1003).to_bytes(2)
    assert "Traceback" not in caplog.text
