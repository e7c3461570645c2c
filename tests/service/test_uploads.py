"""Images of a request: JSON with base64, and its limits."""

import base64

import httpx
import pytest
from fastapi.testclient import TestClient

from tests.support.app import PHOTO, Connect, post, problem


def post_json(client: TestClient, body: object, **query: object) -> httpx.Response:
    return client.post("/v1/expressions", json=body, params=query)


def in_base64(payload: bytes) -> str:
    return base64.b64encode(payload).decode()


def test_images_in_json_give_the_same_faces_as_in_a_form(client: TestClient) -> None:
    images = [{"name": "a.jpg", "base64": in_base64(PHOTO)}, {"base64": in_base64(b"not an image")}]
    good, bad = post_json(client, {"images": images}).json()["images"]
    assert (good["name"], good["faces"]) == ("a.jpg", post(client, PHOTO).json()["images"][0]["faces"])
    assert (bad["name"], bad["error"]["status"]) == (None, 415)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "images"),
        ({"images": []}, "images"),
        ({"images": [{"base64": "data:image/png,AAAA"}]}, "images/0/base64"),
        ({"images": [{"base64": "AAAAA"}]}, "images/0/base64"),
        ({"images": [{"base64": "A\u00e9AA"}]}, "images/0/base64"),
        ({"images": [{"base64": 7}]}, "images/0/base64"),
        ({"images": [{"url": "http://internal/"}]}, "no option is named url; options: name, base64"),
        ({"images": [{"base64": "AAAA"}], "model": "fast"}, "no option is named model; options: images"),
        ([1], "JSON body"),
    ],
)
def test_json_with_another_schema_is_rejected_by_name(client: TestClient, body: object, named: str) -> None:
    detail = problem(post_json(client, body), 422, "invalid-request")
    assert named in detail
    assert ": :" not in detail, "a location that is empty is left out"


@pytest.mark.parametrize("body", [b"", b"{", b"nul", b"\xff\xfe", b"[" * 9000, b'{"images": [' + b"[]," * 10_000])
def test_json_that_is_invalid_deep_or_too_large_is_rejected(client: TestClient, body: bytes) -> None:
    response = client.post("/v1/expressions", content=body, headers={"content-type": "application/json"})
    problem(response, 422, "invalid-request")


def test_the_limits_of_a_form_apply_to_json(connect: Connect) -> None:
    client = connect(max_images=2, max_bytes=len(PHOTO))
    photo, large = {"base64": in_base64(PHOTO)}, {"base64": in_base64(PHOTO + b"x")}
    problem(post_json(client, {"images": [photo] * 3}), 413, "too-many-images")
    first, second = post_json(client, {"images": [large, photo]}).json()["images"]
    assert (first["error"]["type"], len(second["faces"])) == ("urn:mien:problem:payload-too-large", 1)


def test_json_reserves_the_bytes_of_its_copies(connect: Connect) -> None:
    body = {"images": [{"base64": in_base64(PHOTO)}]}
    problem(post_json(connect(max_buffered_bytes=7 * len(PHOTO)), body), 413, "payload-too-large")
    assert post_json(connect(max_buffered_bytes=9 * len(PHOTO)), body).status_code == 200


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
