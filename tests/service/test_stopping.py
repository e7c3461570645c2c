"""SIGTERM: `/ready` fails, accepted requests finish, and none is lost."""

import asyncio
import re
import signal
import socket
import time
from collections import Counter
from pathlib import Path

import filelock
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


def test_a_second_ctrl_c_ends_the_service_without_a_traceback(serve: Serve) -> None:
    server = serve()
    with socket.create_connection(server.address, timeout=10) as half_sent:
        half_sent.sendall(request_bytes(PHOTOS[0], "image/jpeg", host="localhost")[:-1])
        time.sleep(0.2)
        server.process.send_signal(signal.SIGINT)
        eventually(lambda: "Waiting for connections" in server.log.read_text(), failure=server.log.read_text)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(20) == -signal.SIGINT
    assert "Traceback" not in server.log.read_text()


def test_a_request_that_takes_longer_than_the_stop_gets_a_problem(serve: Serve, tmp_path: Path) -> None:
    lock = filelock.FileLock(tmp_path / "lock")  # as if another worker ran the jobs: this one has none to stop first
    lock.acquire(timeout=0)
    server = serve(shutdown_timeout_s=1, jobs_dir=tmp_path)
    with (
        socket.create_connection(server.address, timeout=20) as photo,
        socket.create_connection(server.address, timeout=20) as job,
    ):
        photo.sendall(request_bytes(PHOTOS[0], "image/jpeg", host="localhost")[:-1])
        upload = request_bytes(PHOTOS[0], "application/zip", host="localhost")[:-1]
        job.sendall(upload.replace(b"/v1/expressions", b"/v1/jobs"))
        time.sleep(0.5)
        server.process.terminate()
        for client in (photo, job):
            response = _response(client)
            assert response.startswith(b"http/1.1 503")
            assert b"urn:mien:problem:shutting-down" in response
    assert server.process.wait(20) == 0
    assert "Traceback" not in server.log.read_text()
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "the upload is removed"
    lock.release()
