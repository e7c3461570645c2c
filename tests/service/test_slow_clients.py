"""Deadlines of connections in every state, without an effect on other clients."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection

import httpx
import pytest

from tests.service.conftest import Serve
from tests.support import encoded, eventually, gradient_image
from tests.support.serving import Server

PHOTO = encoded(gradient_image(64, 64), "JPEG")
POST = b"POST /v1/expressions HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@contextmanager
def served_once(server: Server, request: bytes = GET + b"\r\n") -> Iterator[socket.socket]:
    """A connection that has read a whole response."""
    with socket.create_connection(server.address, timeout=20) as client:
        client.sendall(request)
        response = b""
        while not response.endswith(b"}"):
            response += client.recv(65536)
        yield client


def seconds_until_closed(client: socket.socket, drip: bytes = b"") -> float:
    """How long the server keeps a connection open that gets one byte now and then."""
    start = time.monotonic()
    client.settimeout(0.2)
    while time.monotonic() - start < 30:
        try:
            if not client.recv(65536):
                break
        except TimeoutError:
            if drip:
                client.sendall(drip[:1])
                drip = drip[1:] + drip[:1]
        except OSError:
            break
    return time.monotonic() - start


def test_headers_that_never_end_time_out(common: Server) -> None:
    start = time.monotonic()
    response = common.send(POST, *[b"X-Drip: 1\r\n"] * 3, pause_s=0.2)
    assert 0.9 < time.monotonic() - start < 10
    assert response.startswith(b"HTTP/1.1 408")
    assert b"application/problem+json" in response
    assert common.send().startswith(b"HTTP/1.1 408"), "as for a silent connection"


@pytest.mark.parametrize(("stray", "drip"), [(b"\r\n", b""), (b"GET", b""), (b"", b"\r\n")])
def test_a_byte_after_a_response_does_not_keep_the_connection(common: Server, stray: bytes, drip: bytes) -> None:
    with served_once(common) as client:
        client.sendall(stray)
        assert seconds_until_closed(client, drip) < 5


def test_a_connection_above_the_limit_gets_a_problem(serve: Serve) -> None:
    """Until those that send a part of a head only are closed."""
    server = serve(max_connections=20, header_timeout_s=1)
    with ExitStack() as connections:
        for _ in range(10):  # half of them for one address
            connections.enter_context(served_once(server)).sendall(b"GE")
        assert server.send().startswith(b"HTTP/1.1 503")
        with socket.create_connection(server.address, source_address=("127.0.0.2", 0)) as other:
            other.sendall(GET + b"\r\n")
            assert other.recv(100).startswith(b"HTTP/1.1 200"), "another client has room"
        time.sleep(3)
        assert [httpx.get(f"{server.url}/health").status_code for _ in range(5)] == [200] * 5


@pytest.mark.parametrize(
    ("head", "drip"),
    [
        (POST + b"Content-Length: 1000\r\n\r\n", b"a"),
        (GET + b"Content-Length: 1000\r\n\r\n", b"a"),
        (GET + CHUNKED, b"1\r\na\r\n"),
        (GET + CHUNKED + b"0\r\n", b"X: 1\r\n"),
    ],
    ids=["read by the route", "of a finished response", "in chunks", "in trailers"],
)
def test_a_dripped_body_times_out(common: Server, head: bytes, drip: bytes) -> None:
    with socket.create_connection(common.address, timeout=20) as client:
        client.sendall(head)
        assert seconds_until_closed(client, drip) < 8


def test_a_body_that_never_ends_gets_a_problem(common: Server) -> None:
    response = common.send(POST + b"Content-Length: 1000\r\n\r\nabc")
    assert response.startswith(b"HTTP/1.1 408")
    assert b"request-timeout" in response
    assert httpx.get(f"{common.url}/ready").json()["requests_inside"] == 0


@pytest.mark.parametrize(("path", "status"), [("nothing", 404), ("expressions", 415)])
def test_a_client_that_is_still_sending_gets_an_early_response(common: Server, path: str, status: int) -> None:
    client = HTTPConnection(*common.address, timeout=20)  # reads when all is sent
    client.request("POST", f"/v1/{path}", bytes(5_000_000), {"Content-Type": "text/plain", "Connection": "close"})
    response = client.getresponse()
    assert (response.status, response.headers["Content-Type"]) == (status, "application/problem+json")
    assert response.read().endswith(b"}")


def test_the_last_request_of_a_connection_is_the_last(common: Server) -> None:
    last = POST.replace(b"image/jpeg", b"text/plain") + b"Connection: close\r\nContent-Length: 5\r\n\r\n"
    for rest in (b"12345" + GET + b"\r\n", b"12345nonsense", b"12345"):
        response = common.send(last, rest, pause_s=0.2)
        assert response.count(b"HTTP/1.1") == 1
        assert response.startswith(b"HTTP/1.1 415")
    start = time.monotonic()
    assert common.send(last + b"1234").count(b"HTTP/1.1") == 1
    assert time.monotonic() - start < 8, "the rest never comes"


def test_unread_responses_are_aborted(common: Server) -> None:
    """Pipelined assets of 9 MB, and a client that reads nothing."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(common.address)
        client.sendall(b"GET /docs/assets/swagger-ui-bundle.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 6)
        time.sleep(4)
        client.settimeout(20)
        received = 0
        while part := client.recv(1 << 20):
            received += len(part)
        assert received < 5_000_000, "what was in buffers"
    assert "Traceback" not in common.log.read_text()


def test_a_client_that_disconnects_releases_its_place(common: Server) -> None:
    for _ in range(20):
        with socket.create_connection(common.address, timeout=10) as client:
            client.sendall(POST + b"Content-Length: 100000\r\n\r\n" + bytes(500))
    eventually(lambda: httpx.get(f"{common.url}/ready").json()["requests_inside"] == 0)
    assert "Traceback" not in common.log.read_text()
