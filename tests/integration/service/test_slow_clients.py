"""Timeouts for slow clients, without an effect on others."""

import socket
import time

import httpx

from tests.integration.service.conftest import Serve
from tests.serving import Server


def _read_all(client: socket.socket) -> bytes:
    parts = []
    while part := client.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_headers_that_never_end_time_out(common: Server) -> None:
    with socket.create_connection(common.address, timeout=10) as client:
        start = time.monotonic()
        client.sendall(b"POST /v1/expressions HTTP/1.1\r\nHost: localhost\r\n")
        for _ in range(3):
            time.sleep(0.2)
            client.sendall(b"X-Drip: 1\r\n")
        answer = _read_all(client)
        assert 0.9 < time.monotonic() - start < 10
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"application/problem+json" in answer


def test_a_silent_connection_is_closed(common: Server) -> None:
    with socket.create_connection(common.address, timeout=10) as client:
        assert _read_all(client).startswith(b"HTTP/1.1 408")


def test_a_body_that_never_ends_times_out(common: Server) -> None:
    with socket.create_connection(common.address, timeout=10) as client:
        client.sendall(
            b"POST /v1/expressions HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
            b"Content-Length: 1000\r\n\r\nabc"
        )
        answer = _read_all(client)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"request-timeout" in answer
    assert httpx.get(f"{common.url}/ready").json()["requests_inside"] == 0


def test_a_connection_above_the_limit_gets_a_problem(serve: Serve) -> None:
    server = serve(max_connections=3)
    clients = [socket.create_connection(server.address, timeout=10) for _ in range(3)]
    with socket.create_connection(server.address, timeout=10) as late:
        assert _read_all(late).startswith(b"HTTP/1.1 503")
    for client in clients:
        client.close()
    time.sleep(0.3)
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_malformed_request_is_a_problem(common: Server) -> None:
    with socket.create_connection(common.address, timeout=10) as client:
        client.sendall(b"this is no HTTP\r\n\r\n")
        answer = _read_all(client)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in answer


def test_a_client_that_disconnects_releases_its_place(common: Server) -> None:
    for _ in range(20):
        with socket.create_connection(common.address, timeout=10) as client:
            client.sendall(
                b"POST /v1/expressions HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
                b"Content-Length: 100000\r\n\r\n" + bytes(500)
            )
    time.sleep(0.5)
    ready = httpx.get(f"{common.url}/ready").json()
    assert (ready["requests_inside"], ready["queue_depth"]) == (0, 0)
    assert "Traceback" not in common.log.read_text()
