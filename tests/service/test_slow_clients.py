"""Deadlines of connections in every state, without an effect on other clients."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import pytest

from tests.support import eventually
from tests.support.serving import GET, POST, UPGRADE, Server

CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
# What a client sends, then at once, and then byte after byte.
SLOW = {
    "a silent connection": (b"", b"", b""),
    "headers": (POST, b"", b"X-Drip: 1\r\n"),
    "a part of a head after a response": (GET + b"\r\n", b"GET", b""),
    "empty lines after a response": (GET + b"\r\n", b"", b"\r\n"),
    "a body that the route reads": (POST + b"Content-Length: 1000\r\n\r\n", b"", b"a"),
    "a body in chunks": (GET + CHUNKED, b"", b"1\r\na\r\n"),
    "trailers": (GET + CHUNKED + b"0\r\n", b"", b"X: 1\r\n"),
}
PING = bytes([0x89, 0x80, 0, 0, 0, 0])  # masked with zeros, empty


def seconds_until_closed(server: Server, first: bytes, then: bytes, drip: bytes) -> float:
    """How long the server keeps a connection open, from a response to its first request."""
    with socket.create_connection(server.address, timeout=20) as client:
        client.sendall(first)
        client.settimeout(0.2)
        time.sleep(0.3)
        start = time.monotonic()
        try:
            client.sendall(then)
            while time.monotonic() - start < 30:
                try:
                    if not client.recv(65536):
                        break
                except TimeoutError:
                    client.sendall(drip[:1])
                    drip = drip[1:] + drip[:1]
        except ConnectionError:
            pass
        return time.monotonic() - start


def test_no_connection_is_kept_open_by_single_bytes(common: Server) -> None:
    with ThreadPoolExecutor(len(SLOW)) as clients:
        seconds = dict(
            zip(SLOW, clients.map(lambda sent: seconds_until_closed(common, *sent), SLOW.values()), strict=True)
        )
    assert max(seconds.values()) < 8, seconds
    assert common.get("/ready").json()["requests_inside"] == 0


def test_a_connection_above_the_limit_gets_a_problem(common: Server) -> None:
    """Until those that send a part of a head only are closed."""
    with ExitStack() as connections:
        for _ in range(32):  # half of them for one address
            connections.enter_context(socket.create_connection(common.address)).sendall(b"GE")
        assert common.send().startswith(b"HTTP/1.1 503")
        with socket.create_connection(common.address, source_address=("127.0.0.2", 0)) as other:
            other.sendall(GET + b"\r\n")
            assert other.recv(100).startswith(b"HTTP/1.1 200"), "another client has room"
        eventually(lambda: {common.get("/health").status_code for _ in range(5)} == {200})


def test_unread_responses_are_aborted(common: Server) -> None:
    """Pipelined assets of 9 MB, and a client that reads nothing."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(common.address)
        client.sendall(b"GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 6)
        time.sleep(3)
        client.settimeout(20)
        received = 0
        while part := client.recv(1 << 20):
            received += len(part)
        assert received < 5_000_000, "what was in buffers"
    assert "Traceback" not in common.log.read_text()


@contextmanager
def streaming(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(server.address, timeout=20) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(UPGRADE + b"\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 101")
        yield client


def test_a_stream_is_not_closed_as_an_idle_connection(common: Server) -> None:
    with streaming(common) as client:
        time.sleep(2)
        client.sendall(PING)
        assert client.recv(10) == bytes([0x8A, 0])


def test_a_stream_that_does_not_read_is_aborted(common: Server) -> None:
    pings = (bytes([0x89, 0xFD, 0, 0, 0, 0]) + bytes(125)) * 500_000
    with streaming(common) as client, pytest.raises(ConnectionError):
        client.sendall(pings)
