"""SIGTERM: accepted requests finish."""

import socket
import time

from benchmarks.load import request_bytes
from tests.service.conftest import Serve
from tests.support import encoded, eventually, gradient_image
from tests.support.serving import GET

PHOTO = encoded(gradient_image(320, 240), "JPEG")


def _response(client: socket.socket) -> bytes:
    """One response of JSON, headers and body, in lower case."""
    answer = b""
    while not answer.endswith(b"}") and (part := client.recv(4096)):
        answer += part
    return answer.lower()


def test_open_connections_get_their_responses_after_sigterm(serve: Serve) -> None:
    server = serve()

    def port_is_closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(server.address) != 0

    request = request_bytes(PHOTO, "image/jpeg", host="localhost")
    with (
        socket.create_connection(server.address, timeout=10) as kept,
        socket.create_connection(server.address, timeout=10) as half_sent,
    ):
        kept.sendall(GET + b"\r\n")
        assert _response(kept).startswith(b"http/1.1 200")
        half_sent.sendall(request[: len(request) // 2])
        time.sleep(0.3)  # until the server has its head
        server.process.terminate()
        eventually(port_is_closed)
        assert kept.recv(4096) == b"", "idle connections are closed"
        half_sent.sendall(request[len(request) // 2 :])
        assert half_sent.recv(4096).startswith(b"HTTP/1.1 200")
    assert server.process.wait(20) == 0
