"""Connections after an upgrade that the service does not know, and after a request that is refused before its body."""

import re

import pytest

from tests.support import encoded, gradient_image
from tests.support.serving import GET, POST, Server

PHOTO = encoded(gradient_image(64, 64), "JPEG")
CLOSE = b"Connection: close\r\n"


@pytest.mark.parametrize("upgrade", [b"h2c", b"h2c, websocket"])
def test_the_body_after_an_unsupported_upgrade_is_not_the_next_request(common: Server, upgrade: bytes) -> None:
    """As Java's HttpClient and `curl --http2` send it; the body could hide a request from a proxy."""
    head = POST + b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade
    hidden = GET.replace(b"/health", b"/openapi.json") + CLOSE + b"\r\n"
    for body, status in ((hidden, b"415"), (PHOTO, b"200")):
        response = common.send(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body + GET + CLOSE + b"\r\n")
        assert re.findall(rb"HTTP/1.1 (\d+)", response) == [status, b"200"], response
        assert b"openapi" not in response


@pytest.mark.parametrize(
    "head",
    [POST.replace(b"image/jpeg", b"text/plain"), GET.replace(b"GET /health", b"POST /nope")],
    ids=["a media type", "a path"],
)
def test_a_request_that_is_refused_before_its_body_closes_the_connection(common: Server, head: bytes) -> None:
    for more in (b"", b"Expect: 100-continue\r\n"):
        response = common.send(head + more + b"Content-Length: 1000000\r\n\r\n").lower()
        assert b"connection: close" in response
        assert b"100 continue" not in response
    whole = common.post(PHOTO)
    assert (whole.status_code, whole.headers.get("connection")) == (200, None)
