"""Rejection of invalid or large request headers by the protocol, with metrics and a request id."""

import re
from collections import Counter

import httpx
import pytest

from tests.support import encoded, gradient_image
from tests.support.serving import Server

PHOTO = encoded(gradient_image(64, 64), "JPEG")
GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /v1/expressions HTTP/1.1\r\n"


def test_a_header_of_sixty_megabytes_is_rejected_within_milliseconds(common: Server) -> None:
    common.reset_peak()
    before_s, before_mb = common.cpu_s(), common.memory_mb()
    common.send(GET + b"X-Long: ", *[b"a" * 1_000_000] * 60)
    assert common.cpu_s() - before_s <= 0.2
    assert common.peak_mb() - before_mb <= 20
    assert httpx.get(f"{common.url}/health").status_code == 200


@pytest.mark.parametrize(
    "head",
    [
        GET + b"X-Long: " + b"a" * 66_000 + b"\r\n\r\n",
        GET + b"X-Long: " + b"a" * 66_000,
        GET + b"".join(b"X-%d: a\r\n" % number for number in range(99)) + b"\r\n",
        b"GET /" + b"a" * 66_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        GET.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX-Trailer: " + b"a" * 200_000,
    ],
    ids=["one header", "an unfinished header", "101 headers", "a long path", "a trailer"],
)
def test_a_head_above_the_limits_is_rejected(common: Server, head: bytes) -> None:
    response = common.send(head.replace(b"Host:", b"Connection: close\r\nHost:", 1))
    assert b"HTTP/1.1 431 Request Header Fields Too Large" in response
    assert b"urn:mien:problem:request-header-fields-too-large" in response
    assert re.search(rb"(?i)X-Request-ID: [0-9a-f]{32}\r\n", response)


def test_a_head_just_below_the_limits_is_served(common: Server) -> None:
    many = b"".join(b"X-%d: a\r\n" % number for number in range(97))
    for more in (many, b"X: " + b"a" * 60_000 + b"\r\n"):
        assert common.send(GET + b"Connection: close\r\n" + more + b"\r\n").startswith(b"HTTP/1.1 200")


def test_a_request_without_a_host_is_rejected(common: Server) -> None:
    response = common.send(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert response.startswith(b"HTTP/1.1 400")
    assert b"Host: header" in response


@pytest.mark.parametrize(
    "request_",
    [
        b"Content-Length: %d\r\n\r\n" % (len(PHOTO) + 3_000_000) + PHOTO + bytes(3_000_000),
        b"Content-Length: %d \t\r\n\r\n" % len(PHOTO) + PHOTO,
        b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(PHOTO) + PHOTO + b"\r\n0\r\nX-Request-ID: other\r\n\r\n",
    ],
    ids=["a large body", "spaces after a header", "trailers"],
)
def test_bodies_spaces_and_trailers_do_not_count_as_headers(common: Server, request_: bytes) -> None:
    head = POST + b"Host: localhost\r\nContent-Type: image/jpeg\r\nConnection: close\r\n"
    response = common.send(head + request_)
    assert response.startswith(b"HTTP/1.1 200")
    assert b"other" not in response


@pytest.mark.parametrize("upgrade", ["h2c", "TLS/1.0", "websocket2", "h2c, websocket"])
def test_the_body_after_an_unsupported_upgrade_is_not_the_next_request(common: Server, upgrade: str) -> None:
    """As Java's HttpClient and `curl --http2` send it; the body could hide a request from a proxy."""
    head = POST + b"Host: localhost\r\nContent-Type: image/jpeg\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    head += b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %s\r\n" % upgrade.encode()
    hidden = GET.replace(b"/health", b"/openapi.json") + b"Connection: close\r\n\r\n"
    end = GET + b"Connection: close\r\n\r\n"
    response = common.send(head + b"Content-Length: %d\r\n\r\n" % len(hidden) + hidden + end)
    assert re.findall(rb"HTTP/1.1 (\d+)", response) == [b"415", b"200"], response
    assert b"openapi" not in response
    response = common.send(head + b"Content-Length: %d\r\n\r\n" % len(PHOTO) + PHOTO + end)
    assert re.findall(rb"HTTP/1.1 (\d+)", response) == [b"200", b"200"]


def test_a_request_with_a_length_and_chunks_is_the_last_of_its_connection(common: Server) -> None:
    head = POST + b"Host: localhost\r\nContent-Type: image/jpeg\r\nTransfer-Encoding: chunked\r\n"
    body = b"0\r\n\r\n" + GET + b"\r\n"
    response = common.send(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert re.findall(rb"HTTP/1.1 (\d+)", response) == [b"422"], "the rest is a hidden request"


def _rejections(server: Server) -> Counter[str]:
    found = re.findall(r'mien_rejections_total{problem="(.+)"} (\d+)', httpx.get(f"{server.url}/metrics").text)
    return Counter({kind: int(count) for kind, count in found})


def test_rejections_by_the_protocol_are_counted_and_logged_with_their_id(common: Server) -> None:
    before = _rejections(common)
    refused = [common.send(head) for head in (b"nonsense\r\n\r\n", GET + b"X-Long: " + b"a" * 66_000, GET)]
    ids = [re.findall(rb"(?i)X-Request-ID: ([0-9a-f]{32})", response)[0].decode() for response in refused]
    kinds = ("bad-request", "request-header-fields-too-large", "request-timeout")
    assert _rejections(common) - before == Counter(kinds)
    log = common.log.read_text()
    for id_, status in zip(ids, (400, 431, 408), strict=True):
        assert re.search(rf'"- - HTTP/1.1" {status} .*\[{id_}\]', log)
