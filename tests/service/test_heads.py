"""Heads of requests that the protocol rejects, with metrics and a request id; bodies that could hide a request."""

import re
from http import HTTPStatus

import pytest

from tests.support import encoded, gradient_image
from tests.support.serving import GET, POST, UPGRADE, Server

PHOTO = encoded(gradient_image(64, 64), "JPEG")
CLOSE = b"Connection: close\r\n"
LONG = b"a" * 66_000


def test_a_header_of_sixty_megabytes_is_rejected_within_milliseconds(common: Server) -> None:
    common.reset_peak()
    before_s, before_mb = common.cpu_s(), common.memory_mb()
    common.send(GET + b"X-Long: ", *[b"a" * 1_000_000] * 60)
    assert common.cpu_s() - before_s <= 0.2
    assert common.peak_mb() - before_mb <= 20
    assert common.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("head", "status"),
    [
        pytest.param(GET + b"X-Long: " + LONG, 431, id="an unfinished header"),
        pytest.param(GET + CLOSE + b"".join(b"X-%d: a\r\n" % n for n in range(99)) + b"\r\n", 431, id="101 headers"),
        pytest.param(
            POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: " + b"a" * 200_000, 431, id="a trailer"
        ),
        pytest.param(b"nonsense\r\n\r\n", 400, id="nonsense"),
        pytest.param(GET, 408, id="no end"),
        pytest.param(POST + b"Content-Length: 1000\r\n\r\nabc", 408, id="no end of the body"),
        pytest.param(UPGRADE + b"Content-Length: 1\r\n\r\na", 400, id="a stream with a body"),
    ],
)
def test_what_the_protocol_rejects_is_a_problem_that_is_counted_and_logged_with_its_id(
    common: Server, head: bytes, status: int
) -> None:
    kind = HTTPStatus(status).phrase.lower().replace(" ", "-")

    def count() -> int:
        counts = re.findall(rf'mien_rejections_total{{problem="{kind}"}} (\d+)', common.get("/metrics").text)
        return int(counts[0]) if counts else 0

    before = count()
    response = common.send(head).decode()
    assert f"HTTP/1.1 {status} " in response
    assert f'"urn:mien:problem:{kind}"' in response
    assert count() == before + 1
    id_ = re.findall(r"(?i)X-Request-ID: ([0-9a-f]{32})\r\n", response)[-1]
    log = common.log.read_text()
    assert re.search(rf" {status} .*\[{id_}\]", log)
    assert "Traceback" not in log


@pytest.mark.parametrize("upgrade", [b"h2c", b"h2c, websocket"])
def test_the_body_after_an_unsupported_upgrade_is_not_the_next_request(common: Server, upgrade: bytes) -> None:
    """As Java's HttpClient and `curl --http2` send it; the body could hide a request from a proxy."""
    head = POST + b"HTTP2-Settings: AAMAAABkAAQAAP__\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: " + upgrade
    hidden = GET.replace(b"/health", b"/openapi.json") + CLOSE + b"\r\n"
    for body, status in ((hidden, b"415"), (PHOTO, b"200")):
        response = common.send(head + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body + GET + CLOSE + b"\r\n")
        assert re.findall(rb"HTTP/1.1 (\d+)", response) == [status, b"200"], response
        assert b"openapi" not in response


def test_a_request_with_a_length_and_chunks_is_the_last_of_its_connection(common: Server) -> None:
    body = b"0\r\n\r\n" + GET + b"\r\n"
    response = common.send(POST + b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert re.findall(rb"HTTP/1.1 (\d+)", response) == [b"422"], "the rest is a hidden request"
