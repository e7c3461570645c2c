"""Requests that are rejected: their bodies, options, boxes and sizes; images in JSON."""

import base64
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from tests.support.app import ONE_PHOTO, PHOTO, Connect, post, problem

FORM, JSON = "multipart/form-data; boundary=x", "application/json"
TRUNCATED = b'--x\r\nContent-Disposition: form-data; name="images"\r\n\r\ncut'
IMAGES, DATA_URL = ("images", PHOTO), f"data:image/jpeg;base64,{base64.b64encode(PHOTO).decode()}"


def raw(content: bytes, kind: str, **headers: str) -> dict[str, Any]:
    return {"content": content, "headers": {"content-type": kind} | headers}


def boxes(*parts: str) -> dict[str, Any]:
    return {"files": [IMAGES, IMAGES, *(("boxes", (None, part)) for part in parts)]}


def option(**values: object) -> dict[str, Any]:
    return {"params": values, **ONE_PHOTO}


def json_image(**fields: object) -> dict[str, Any]:
    return {"json": {"images": [fields]}}


@pytest.mark.parametrize(
    ("request_", "status", "detail"),
    [
        (raw(b"--x--\r\n", "multipart/form-data"), 422, ""),
        (raw(b"", FORM), 422, ""),
        (raw(b"--x--\r\n", FORM), 422, ""),
        (raw(b"garbage", FORM), 422, ""),
        (raw(TRUNCATED, FORM), 422, ""),
        (raw(b"", "multipart/form-data; boundary=" + "x" * 300), 422, ""),
        (raw(b"", "image/png"), 422, ""),
        (raw(b"{}", "text/plain"), 415, ""),
        ({"content": b"{}"}, 415, ""),
        (raw(PHOTO, "image/jpeg", **{"content-encoding": "gzip"}), 415, ""),
        (raw(b"x", "image/jpeg", **{"content-length": "9" * 19}), 413, ""),
        (raw(b"x", "image/jpeg", **{"content-length": "9" * 5000}), 413, ""),
        (raw(b"", JSON), 422, ""),
        (raw(b"nul", JSON), 422, ""),
        (raw(b"\xff\xfe", JSON), 422, ""),
        (raw(b"[" * 9000, JSON), 422, ""),
        (raw(b'{"images": [' + b"[]," * 10_000, JSON), 422, ""),
        ({"json": [1]}, 422, "JSON body"),
        ({"json": {}}, 422, "images"),
        ({"json": {"images": []}}, 422, "images"),
        ({"json": {"images": [], "model": "fast"}}, 422, "no option is named model; options: images"),
        (json_image(url="http://internal/"), 422, "no option is named url; options: name, base64"),
        (json_image(base64="data:image/png,AAAA"), 422, "images/0/base64"),
        (json_image(base64="AAAAA"), 422, "images/0/base64"),
        (json_image(base64="A\u00e9AA"), 422, "images/0/base64"),
        (json_image(base64=7), 422, "images/0/base64"),
        (option(top_k=101), 422, "top_k"),
        (option(top_k="x"), 422, "top_k"),
        (option(top_k=[2, 3]), 422, "top_k"),
        (option(confidence_threshold=1.5), 422, "confidence_threshold"),
        (option(min_face_px=0), 422, "min_face_px"),
        (option(url="x"), 422, "url"),
        (option(model="accurate"), 422, "model accurate: not loaded here. Choose one of: fast"),
        (boxes("[[]]"), 422, "lists for 1 images, expected 2"),
        (boxes("[[], 3]"), 422, "1"),
        (boxes("[[{}], null]"), 422, "x"),
        (boxes("no JSON"), 422, "Invalid JSON"),
        (boxes("[" * 9000), 422, "Invalid JSON"),
        (boxes("[" * 20_000), 422, "values"),
        (boxes("[null, null]", "[null, null]"), 422, "one part 'boxes'"),
        (boxes(" " * 3_000_000), 422, "Part exceeded"),
        ({"files": {"file": PHOTO}}, 422, "'file'"),
        # of deepface
        ({"files": {"img": PHOTO}}, 422, "send images as 'images'"),
        ({"json": {"img": DATA_URL}}, 422, 'body {"images": [{"base64": "..."}]}'),
        ({"json": {"actions": ["emotion"]}}, 422, "deepface's actions: nothing, each face has its expression"),
        (option(detector_backend="retinaface"), 422, "MIEN_DETECTOR"),
    ],
)
def test_a_request_that_cannot_be_understood_is_rejected_by_what_is_wrong(
    client: TestClient, request_: dict[str, Any], status: int, detail: str
) -> None:
    kind = {413: "payload-too-large", 415: "unsupported-content", 422: "invalid-request"}[status]
    found = problem(client.post("/v1/expressions", **request_), status, kind)
    assert detail in found
    assert ": :" not in found, "a location that is empty is left out"


@pytest.mark.parametrize(
    ("limit", "payloads", "kind"),
    [
        ({"max_pixels": 100_000}, [PHOTO], "image-too-large"),
        ({"max_images": 2}, [PHOTO] * 3, "too-many-images"),
        ({"max_body_bytes": 2048}, [bytes(5000)], "payload-too-large"),
        ({"max_bytes": len(PHOTO)}, [PHOTO + b"x"], "payload-too-large"),
    ],
)
def test_a_request_above_a_limit_is_rejected(
    connect: Connect, limit: dict[str, int], payloads: list[bytes], kind: str
) -> None:
    problem(post(connect(**limit), *payloads), 413, kind)


def test_a_body_without_a_length_is_cut_at_the_limit(connect: Connect) -> None:
    client = connect(max_body_bytes=10_000)
    sent = 0

    async def chunks() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 1000
            yield bytes(1000)

    async def upload() -> httpx.Response:
        # unlike the test client, this transport hands over a chunk only when the application asks for it
        async with httpx.AsyncClient(transport=httpx.ASGITransport(client.app), base_url="http://localhost") as http:
            return await http.post("/v1/expressions", content=chunks(), headers={"content-type": "image/jpeg"})

    assert client.portal is not None
    problem(client.portal.call(upload), 413, "payload-too-large")
    assert sent <= 24_000, (
        "the limit twice: what is stored, and what is discarded so that the client reads the response"
    )


def post_json(client: TestClient, *images: dict[str, object]) -> httpx.Response:
    return client.post("/v1/expressions", json={"images": images})


def in_base64(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def test_images_in_json_give_the_same_faces_as_in_a_form(client: TestClient) -> None:
    images = {"name": "a.jpg", "base64": in_base64(PHOTO)}, {"base64": in_base64(b"not an image")}
    good, bad = post_json(client, *images).json()["images"]
    assert (good["name"], good["faces"]) == ("a.jpg", post(client, PHOTO).json()["images"][0]["faces"])
    assert (bad["name"], bad["error"]["status"]) == (None, 415)


def test_the_limits_of_a_form_apply_to_json(connect: Connect) -> None:
    client = connect(max_images=2, max_bytes=len(PHOTO))
    photo, large = {"base64": in_base64(PHOTO)}, {"base64": in_base64(PHOTO + b"x")}
    problem(post_json(client, *[photo] * 3), 413, "too-many-images")
    first, second = post_json(client, large, photo).json()["images"]
    assert (first["error"]["type"], len(second["faces"])) == ("urn:mien:problem:payload-too-large", 1)


def test_json_reserves_the_bytes_of_its_copies(connect: Connect) -> None:
    photo = {"base64": in_base64(PHOTO)}
    problem(post_json(connect(max_buffered_bytes=7 * len(PHOTO)), photo), 413, "payload-too-large")
    assert post_json(connect(max_buffered_bytes=9 * len(PHOTO)), photo).status_code == 200


@pytest.mark.parametrize(
    ("disposition", "name"),
    [
        ("filename*=UTF-8''na%C3%AFve%20photo.jpg", "na\u00efve photo.jpg"),
        ("filename=\"a.jpg\"; filename*=utf-8'en'%E2%82%AC.jpg", "\u20ac.jpg"),
        ('filename="plain.jpg"', "plain.jpg"),
    ],
)
def test_encoded_file_names_are_returned(client: TestClient, disposition: str, name: str) -> None:
    head = f'--x\r\nContent-Disposition: form-data; name="images"; {disposition}\r\n\r\n'
    body = head.encode() + PHOTO + b"\r\n--x--\r\n"
    response = client.post("/v1/expressions", content=body, headers={"content-type": "multipart/form-data; boundary=x"})
    assert response.json()["images"][0]["name"] == name
