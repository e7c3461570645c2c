"""Connections of a real server: upgrades, refusals before a body, SIGTERM, and no trace of images or query strings."""

import re
import socket
import time
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest

from benchmarks.load import request_bytes
from tests.support import encoded, eventually, gradient_image, is_listening
from tests.support.serving import Server, serving

# The heads of requests, to which more headers and an empty line are added
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/expressions HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/jpeg\r\n"
UPGRADE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
PHOTO = encoded(gradient_image(64, 64), "JPEG")
CLOSE = b"Connection: close\r\n"
CANARY = b"canary-7d1c9e52-in-the-image"


def send(server: Server, request: bytes) -> bytes:
    """Send raw bytes, and return what the server writes until it closes."""
    received = b""
    with socket.create_connection(server.address, timeout=20) as client, suppress(OSError):
        client.sendall(request)
        while part := client.recv(65536):
            received += part
    return received


@pytest.mark.parametrize("upgrade", [b"h2c", b"h2c, websocket"])
def test_the_body_after_an_unsupported_upgrade_is_not_the_next_request(common: Server, upgrade: bytes) -> None:
    """As Java's HttpClient and `curl --http2` send it; the body could hide a request from a proxy."""
    head = POST + b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade
    hidden = GET.replace(b"/health", b"/openapi.json") + CLOSE + b"\r\n"
    for body, status in ((hidden, b"415"), (PHOTO, b"200")):
        response = send(common, head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body + GET + CLOSE + b"\r\n")
        assert re.findall(rb"HTTP/1.1 (\d+)", response) == [status, b"200"], response
        assert b"openapi" not in response


@pytest.mark.parametrize(
    "head",
    [POST.replace(b"image/jpeg", b"text/plain"), GET.replace(b"GET /health", b"POST /nope")],
    ids=["a media type", "a path"],
)
def test_a_request_that_is_refused_before_its_body_closes_the_connection(common: Server, head: bytes) -> None:
    for more in (b"", b"Expect: 100-continue\r\n"):
        response = send(common, head + more + b"Content-Length: 1000000\r\n\r\n").lower()
        assert b"connection: close" in response
        assert b"100 continue" not in response
    whole = common.post(PHOTO)
    assert (whole.status_code, whole.headers.get("connection"), whole.headers.get("server")) == (200, None, None)


def test_open_connections_get_their_responses_after_sigterm(artifact: Path, tmp_path: Path) -> None:
    request = request_bytes(PHOTO, "image/jpeg", host="localhost")
    with (
        serving(tmp_path, artifact) as server,
        socket.create_connection(server.address, timeout=10) as kept,
        socket.create_connection(server.address, timeout=10) as half_sent,
    ):
        kept.sendall(GET + b"\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += kept.recv(4096)
        half_sent.sendall(request[: len(request) // 2])
        time.sleep(0.3)  # until the server has its head
        server.process.terminate()
        eventually(lambda: not is_listening(server.port))
        assert kept.recv(4096) == b"", "idle connections are closed"
        half_sent.sendall(request[len(request) // 2 :])
        assert half_sent.recv(4096).startswith(b"HTTP/1.1 200")
        assert server.process.wait(20) == 0


def test_a_canary_image_is_not_stored_anywhere(common: Server) -> None:
    """Not even for a moment: the service works with a temporary folder that is not writable."""
    (common.folder / "tmp").chmod(0o500)
    files = {*filter(Path.is_file, common.folder.rglob("*"))}
    noise = np.random.default_rng(0).integers(0, 256, (1000, 1000, 3), dtype=np.uint8)
    photo = encoded(noise) + CANARY  # 3 MB, more than form parsers keep in memory
    for name, payload, status in ((f"{CANARY.decode()}.png", photo, 200), ("broken.png", photo[:50_000] + CANARY, 422)):
        form = {"images": (name, payload, "image/png")}
        response = httpx.post(f"{common.url}/v1/expressions", files=form, timeout=30)
        assert response.status_code == common.post(payload).status_code == status
    for opened in Path(f"/proc/{common.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            assert not opened.readlink().is_relative_to(common.folder / "tmp"), "no hidden temporary file"
    assert {*filter(Path.is_file, common.folder.rglob("*"))} == files, "no file is left behind"
    assert b"/v1/expressions" in common.log.read_bytes(), "the log is the right one"
    for path in files:
        assert CANARY not in path.read_bytes(), path
        assert photo[1000:1032] not in path.read_bytes(), path


def test_query_strings_and_refused_streams_leave_no_trace_but_their_path(common: Server) -> None:
    common.get("/nope?key=secret", headers={"x-forwarded-for": "10.6.6.6"})
    for path, origin in ((b"/v1/stream?key=secret", b"http://localhost"), (b"/v1/stream", b"http://[::1")):
        response = send(common, UPGRADE.replace(b"/v1/stream", path) + b"Origin: %s\r\n\r\n" % origin)
        assert b"application/problem+json" in response
    log = common.log.read_text()
    assert '127.0.0.1 - "GET /nope" 404' in log, "the address of a client that could be a proxy's"
    assert '"WebSocket /v1/stream" 422' in log
    assert "secret" not in log
    assert "Traceback" not in log
