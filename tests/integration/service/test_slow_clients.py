"""Timeouts for slow clients, without an effect on others."""

import socket
import time

import httpx

from tests.integration.service.conftest import Serve
from tests.serving import Server

POST = b"POST /v1/expressions HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"


def test_headers_that_never_end_time_out(common: Server) -> None:
    start = time.monotonic()
    response = common.send(POST, *[b"X-Drip: 1\r\n"] * 3, pause_s=0.2)
    assert 0.9 < time.monotonic() - start < 10
    assert response.startswith(b"HTTP/1.1 408")
    assert b"application/problem+json" in response


def test_a_silent_connection_is_closed(common: Server) -> None:
    assert common.send().startswith(b"HTTP/1.1 408")


def test_a_body_that_never_ends_times_out(common: Server) -> None:
    response = common.send(POST + b"Content-Length: 1000\r\n\r\nabc")
    assert response.startswith(b"HTTP/1.1 408")
    assert b"request-timeout" in response
    assert httpx.get(f"{common.url}/ready").json()["requests_inside"] == 0


def test_a_connection_above_the_limit_gets_a_problem(serve: Serve) -> None:
    server = serve(max_connections=3)
    clients = [socket.create_connection(server.address, timeout=10) for _ in range(3)]
    assert server.send().startswith(b"HTTP/1.1 503")
    for client in clients:
        client.close()
    time.sleep(0.3)
    assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_malformed_request_is_a_problem(common: Server) -> None:
    response = common.send(b"this is not HTTP\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in response


def test_a_client_that_disconnects_releases_its_place(common: Server) -> None:
    for _ in range(20):
        with socket.create_connection(common.address, timeout=10) as client:
            client.sendall(POST + b"Content-Length: 100000\r\n\r\n" + bytes(500))
    time.sleep(0.5)
    ready = httpx.get(f"{common.url}/ready").json()
    assert (ready["requests_inside"], ready["queue_depth"]) == (0, 0)
    assert "Traceback" not in common.log.read_text()
