"""SIGTERM: `/ready` fails, accepted requests finish, and none is lost."""

import asyncio
import re
import socket
from collections import Counter

import pytest

from benchmarks.load import REFUSED, Outcome, open_loop, request_bytes
from tests.service.conftest import Serve
from tests.support import encoded, eventually, gradient_image
from tests.support.serving import GET, Server

PHOTOS = [encoded(gradient_image(width, 240), "JPEG") for width in (320, 400, 480)]


async def _load_and_stop(server: Server, *, rate: float, seconds: float) -> list[Outcome]:
    requests = [request_bytes(photo, "image/jpeg", host="localhost", close=True) for photo in PHOTOS]
    load = asyncio.create_task(open_loop(server.address, requests, count=int(rate * seconds), rate=rate))
    await asyncio.sleep(seconds / 2)
    assert await asyncio.to_thread(server.stop) == 0
    return await load


@pytest.mark.parametrize("stops", [1, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize("workers", [1, 2, pytest.param(4, marks=pytest.mark.soak)])
def test_no_accepted_request_is_lost_when_the_service_stops(serve: Serve, workers: int, stops: int) -> None:
    for _ in range(stops):
        server = serve(max_queue=1000, max_per_client=0, workers=workers)
        outcomes = asyncio.run(_load_and_stop(server, rate=60, seconds=2))
        statuses = Counter(outcome.status for outcome in outcomes)
        assert set(statuses) <= {200, REFUSED}, f"a response, or a closed port; nothing lost: {statuses}"
        assert statuses[200] >= 20
        logged = re.findall(r'"POST /v1/expressions HTTP/1.1" 200', server.log.read_text())
        assert len(logged) == statuses[200], "every request that the server took was answered, to the last byte"


def _response(client: socket.socket) -> bytes:
    """One response of JSON, headers and body, in lower case."""
    answer = b""
    while not answer.endswith(b"}") and (part := client.recv(4096)):
        answer += part
    return answer.lower()


def test_readiness_fails_before_the_port_closes_and_open_connections_get_their_responses(serve: Serve) -> None:
    server = serve(drain_s=2)

    def port_is_closed() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(server.address) != 0

    request = request_bytes(PHOTOS[0], "image/jpeg", host="localhost")
    with (
        socket.create_connection(server.address, timeout=10) as kept,
        socket.create_connection(server.address, timeout=10) as half_sent,
    ):
        kept.sendall(GET + b"\r\n")
        assert _response(kept).startswith(b"http/1.1 200")
        half_sent.sendall(request[: len(request) // 2])
        server.process.terminate()
        eventually(lambda: server.get("/ready").status_code == 503)
        late = server.post(PHOTOS[0])
        assert (late.status_code, late.headers["connection"]) == (200, "close")
        eventually(port_is_closed)
        kept.sendall(GET + b"\r\n")
        answer = _response(kept)
        assert answer.startswith(b"http/1.1 200")
        assert b"connection: close" in answer
        half_sent.sendall(request[len(request) // 2 :])
        assert half_sent.recv(4096).startswith(b"HTTP/1.1 200")
    assert server.process.wait(20) == 0
