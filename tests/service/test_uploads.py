"""Requests that are rejected: their bodies, options, boxes and sizes; images in JSON; the queue and the buffer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import nullcontext
from typing import Any

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import Headers

from mien.app.errors import PayloadTooLarge, QueueFull
from mien.app.service.metrics import Metrics
from mien.app.service.uploads import Admission, read_uploads
from mien.app.settings import Settings
from tests.service.conftest import ONE_PHOTO, PHOTO, Connect, post, problem
from tests.support import encoded, gradient_image

FORM, JSON = "multipart/form-data; boundary=x", "application/json"
TRUNCATED = b'--x\r\nContent-Disposition: form-data; name="images"\r\n\r\ncut'


def raw(content: bytes, kind: str, **headers: str) -> dict[str, Any]:
    return {"content": content, "headers": {"content-type": kind} | headers}


def option(**values: object) -> dict[str, Any]:
    return {"params": values, **ONE_PHOTO}


def in_json(*images: dict[str, object]) -> dict[str, Any]:
    return {"json": {"images": images}}


@pytest.mark.parametrize(
    ("request_", "status", "detail"),
    [
        (raw(b"--x--\r\n", FORM), 422, ""),
        (raw(TRUNCATED, FORM), 422, ""),
        (raw(b"{}", "imaging/x"), 415, ""),
        (raw(PHOTO, "image/jpeg", **{"content-encoding": "gzip"}), 415, ""),
        (raw(b"x", "image/jpeg", **{"content-length": "9" * 5000}), 413, ""),
        (raw(b"\xff\xfe", JSON), 422, ""),
        (raw(b"[" * 9000, JSON), 422, ""),
        (raw(b'{"images": [' + b"[]," * 10_000, JSON), 422, ""),
        (in_json(), 422, "images"),
        ({"json": {"images": [], "model": "fast"}}, 422, "no option is named model; options: images"),
        (in_json({"url": "http://internal/"}), 422, "no option is named url; options: name, base64"),
        (option(confidence_threshold=2), 422, "confidence_threshold"),
        (option(crops=[True, True]), 422, "option crops: given more than once"),
        (option(top_k=2), 422, "no option is named top_k; options: confidence_threshold"),
        ({"files": [("images", PHOTO), ("boxes", (None, "[[]]"))]}, 422, "boxes in application/json"),
        ({"files": {"file": PHOTO}}, 422, "'file'"),
    ],
)
def test_a_request_that_cannot_be_understood_is_rejected_by_what_is_wrong(
    client: TestClient, request_: dict[str, Any], status: int, detail: str
) -> None:
    kind = {413: "payload-too-large", 415: "unsupported-content", 422: "invalid-request"}[status]
    assert detail in problem(client.post("/v1/expressions", **request_), status, kind)


def test_a_request_above_a_limit_is_rejected_and_a_jpeg_of_four_times_the_pixels_is_decoded_at_half_size(
    connect: Connect,
) -> None:
    client = connect(max_pixels=100_000, max_images=2, max_body_bytes=len(PHOTO) * 3)
    (image,) = post(client, PHOTO).json()["images"]
    assert (image["width"], image["height"], image["error"]) == (640, 480, None)
    assert image["faces"][0]["box"] == {"x": 240.0, "y": 160.0, "width": 160.0, "height": 160.0}
    for large in (encoded(gradient_image(640, 480), "PNG"), encoded(gradient_image(640, 640), "JPEG")):
        problem(post(client, large), 413, "too_large")
    problem(post(client, *[PHOTO[:99]] * 3), 413, "too-many-images")
    problem(client.post("/v1/expressions", **in_json(*[{"base64": ""}] * 3)), 413, "too-many-images")
    problem(post(client, bytes(len(PHOTO) * 3)), 413, "payload-too-large")


def test_chunks_reserve_their_bytes_and_those_of_copies_up_to_the_limit() -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b'{"images": [{"base64": '
        yield b'"AAAA"}]}'
        if endless:
            for _ in range(1000):
                yield bytes(1000)

    def reserved(kind: str, **head: str) -> list[int]:
        counts: list[int] = []
        settings = Settings(max_body_bytes=10_000)
        with pytest.raises(PayloadTooLarge) if endless or head else nullcontext():
            asyncio.run(read_uploads(Headers({"content-type": kind} | head), chunks(), settings, counts.append))
        return counts

    endless = False
    assert (reserved("image/png"), reserved(JSON)) == ([23, 9], [69, 27])
    assert reserved("image/png", **{"content-length": "10001"}) == [], "before the body"
    endless = True
    assert sum(reserved("image/png")) == 9032


def test_names_of_files_are_those_that_the_client_sent(client: TestClient) -> None:
    for parameters, name in (
        ("filename=\"a; filename*=UTF-8''evil.jpg\"", "a; filename*=UTF-8''evil.jpg"),
        ('filename="a%22b.jpg"', 'a"b.jpg'),
        (f'filename="{"é" * 300}"', "é" * 255),
        ("filename*=ISO-8859-1''caf%E9.jpg", None),  # RFC 7578 forbids it in a form
    ):
        head = f'--x\r\nContent-Disposition: form-data; name="images"; {parameters}\r\n\r\n'.encode()
        form = raw(head + PHOTO + b"\r\n--x--\r\n", FORM, **{"content-encoding": "Identity"})
        assert client.post("/v1/expressions", **form).json()["images"][0]["name"] == name


def test_a_canceled_request_leaves_the_queue_and_its_slot() -> None:
    gate = Admission(Settings(), Metrics(), slots=1)

    async def run() -> None:
        async with asyncio.timeout(0), gate.slot(), gate.slot():  # the second waits for the first
            pass

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert (gate.waiting, gate.working, gate._slots.locked()) == (0, 0, False)


def test_bodies_share_a_buffer_of_three_bodies() -> None:
    gate = Admission(Settings(max_body_bytes=1024), Metrics(), slots=1)
    with gate.admit() as first, gate.admit() as second:
        first(2072)
        second(1000)
        with pytest.raises(QueueFull):
            second(1)
    assert gate.buffered_bytes == 0
    with gate.admit() as alone:
        alone(1536)
        alone(1536)
        with pytest.raises(PayloadTooLarge, match="more than 3072 bytes"):  # in total, not per call
            alone(1)
