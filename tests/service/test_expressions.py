"""`POST /v1/expressions`: responses, and problems of a busy or failing service."""

import asyncio
import base64
import contextvars
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from fastapi.testclient import TestClient

from mien.app.inference.classifier import Classifier
from mien.app.service import api
from mien.app.service.metrics import JsonLines, RequestFilter, request_id
from mien.app.settings import Settings
from mien.data.contract import decode
from tests.service.conftest import ONE_PHOTO, PHOTO, Connect, SlowDetector, post, problem
from tests.support import encoded, gradient_image, tiny_artifact


def test_a_photo_comes_back_with_its_face_its_doubt_and_its_drawing(client: TestClient) -> None:
    body = post(client, PHOTO, annotate="true").json()
    assert (body["model"], body["choice"], body["detector"]) == ("tiny.test", "fast", "drawn")
    assert (body["provider"], body["precision"]) == ("CPUExecutionProvider", "fp32")
    assert body["confidence_threshold"] == 0.3, "that of the model"
    (image,) = body["images"]
    assert (image["index"], image["name"], image["width"], image["height"]) == (0, "0.jpg", 640, 480)
    assert set(image["timings_ms"]) == {"decode", "detect", "align", "classify"}
    (face,) = image["faces"]
    assert face["box"] == {"x": 280.0, "y": 200.0, "width": 80.0, "height": 80.0}
    assert face["landmarks"]["left_eye"] == {"x": 304.0, "y": 228.0}
    assert face["confidence"] == face["probabilities"][face["label"]] == max(face["probabilities"].values())
    drawn = decode(base64.b64decode(image["annotated"]["base64"]))
    changed = np.abs(drawn.astype(int) - decode(PHOTO)).max(axis=2) > 40
    assert changed[200:280, 278:283].any(), "the left edge of the face's box is drawn"
    assert not changed[:, :150].any()
    (wide,) = post(client, encoded(np.full((500, 4096, 3), 128, np.uint8)), annotate="true").json()["images"]
    assert decode(base64.b64decode(wide["annotated"]["base64"])).shape == (250, 2048, 3)
    assert (wide["notes"], image["notes"]) == (["reduced_search"], [])
    for threshold in (1, 0):
        (same,) = post(client, PHOTO, confidence_threshold=threshold).json()["images"][0]["faces"]
        assert (same["label"], same["uncertain"], same["reasons"][0]) == (face["label"], threshold == 1, "covered")


def test_crops_and_attention_maps_are_those_of_each_face_and_a_model_without_maps_says_so(
    client: TestClient, connect: Connect, tmp_path: Path
) -> None:
    photo = encoded(gradient_image(640, 480), "PNG")
    (face,) = post(client, photo, crops="true", explain="true").json()["images"][0]["faces"]
    (plain,) = post(client, photo).json()["images"][0]["faces"]
    assert (plain["crop"], plain["explanation"]) == (None, None)
    crop, overlay = (
        decode(base64.b64decode(picture["base64"])) for picture in (face["crop"], face["explanation"]["overlay"])
    )
    model = Classifier(Settings(model=tiny_artifact(tmp_path / "tiny.test", explain=None), device="cpu"))
    attention = np.array(face["explanation"]["map"])
    tiles = crop.reshape(7, 16, 7, 16, 3).mean(axis=(1, 3, 4))
    assert attention == pytest.approx(tiles / tiles.sum(), abs=1e-4)
    assert np.abs(overlay.astype(int) - crop.repeat(2, axis=0).repeat(2, axis=1)).mean() > 10
    detail = problem(post(connect(classifies=model), photo, explain="true"), 422, "invalid-request")
    assert "has no attention map" in detail


def test_a_bad_image_among_good_ones_has_an_error_and_alone_it_is_a_problem(connect: Connect) -> None:
    client = connect(max_bytes=len(PHOTO))
    files_only = encoded(gradient_image(64, 64), "PPM")  # slow ones are not accepted from senders
    payloads = (PHOTO, PHOTO[:2000], files_only, PHOTO + b"x", b"", PHOTO)
    response = post(client, *payloads)
    assert response.status_code == 200
    good, *bad, last = response.json()["images"]
    assert (len(good["faces"]), good["error"], last["faces"]) == (1, None, good["faces"])
    assert [(image["index"], image["width"], image["faces"]) for image in bad] == [(n, None, []) for n in range(1, 5)]
    problems = [("corrupt", 422), ("unsupported", 415), ("too_large", 413), ("empty", 422)]
    for image, payload, (kind, status) in zip(bad, payloads[1:], problems, strict=False):
        assert image["error"]["type"] == f"urn:mien:problem:{kind}"
        problem(client.post("/v1/expressions", content=payload, headers=ONE_PHOTO["headers"]), status, kind)
    for text in ("", "AAAAA", "no base64!"):
        images = [{"name": "a.jpg", "base64": base64.b64encode(PHOTO).decode()}, {"base64": text}]
        first, second = client.post("/v1/expressions", json={"images": images}).json()["images"]
        assert (first["name"], first["faces"]) == ("a.jpg", good["faces"])
        assert (second["name"], second["error"]["type"]) == (None, "urn:mien:problem:empty")


def test_given_boxes_are_labeled_instead_of_detected_faces(client: TestClient) -> None:
    boxes = [
        {"x": 50.0, "y": 60.0, "width": 70.0, "height": 90.0},
        {"x": 280.0, "y": 200.0, "width": 80.0, "height": 80.0},
    ]
    image = {"base64": base64.b64encode(PHOTO).decode()}
    images = [image | {"boxes": boxes}, image, image | {"boxes": []}]
    first, second, third = client.post("/v1/expressions", json={"images": images}).json()["images"]
    assert [face["box"] for face in first["faces"]] == boxes
    assert first["faces"][0]["probabilities"] != first["faces"][1]["probabilities"]
    assert [face["box"] for face in second["faces"]] == [boxes[1]], "detected"
    assert third["faces"] == []


def post_in_parts(client: TestClient, send: Callable[..., Any], *messages: dict[str, Any]) -> None:
    """Post a photo to the application itself; `messages` follow the body, and `send` gets what is sent."""
    received = iter([{"type": "http.request", "body": PHOTO}, *messages])

    async def receive() -> dict[str, Any]:
        for message in received:
            return message
        await asyncio.Event().wait()
        raise AssertionError

    headers = {b"host": b"localhost", b"content-type": b"image/jpeg", b"content-length": b"%d" % len(PHOTO)}
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/v1/expressions", "root_path": ""}
    scope |= {"query_string": b"crops=true", "headers": [*headers.items()], "client": ("10.0.0.9", 1)}
    assert client.portal is not None
    client.portal.call(client.app, scope, receive, send)


def test_the_buffer_is_freed_when_the_client_has_read_the_response(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_PIECE_BYTES", 1000)
    client, buffered, body = connect(), list[int](), b""
    admission = client.app.state.service.admission  # type: ignore[attr-defined]

    async def send(message: dict[str, Any]) -> None:
        nonlocal body
        body += message.get("body", b"")
        buffered.append(admission.buffered_bytes)

    post_in_parts(client, send)
    assert len(buffered) > 5
    assert min(buffered) >= len(PHOTO) + 2 * len(json.loads(body)["images"][0]["faces"][0]["crop"]["base64"])
    assert admission.buffered_bytes == 0


def test_a_request_that_its_client_gives_up_leaves_a_line_in_the_log_and_nothing_else(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    slow = SlowDetector()
    client = connect(detector=slow)
    admission = client.app.state.service.admission  # type: ignore[attr-defined]

    async def send(_: object) -> None:
        pass

    with caplog.at_level(logging.INFO, logger="mien.app.service.app"):
        post_in_parts(client, send, {"type": "http.disconnect"})
    slow.go.set()
    assert '10.0.0.9 - "POST /v1/expressions" 499' in caplog.text
    assert (admission.buffered_bytes, admission.waiting, admission.working) == (0, 0, 0)


def test_a_request_too_many_is_rejected_immediately_until_there_is_room(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "cores", lambda: 1)
    slow, slots = SlowDetector(), 8
    client = connect(detector=slow, max_queue=1)
    with ThreadPoolExecutor(slots + 1) as pool:
        accepted = [pool.submit(post, client, PHOTO) for _ in range(slots + 1)]
        assert slow.begun.acquire(timeout=10)
        while client.get("/ready").json()["queue_depth"] < 1:
            pass
        assert client.get("/ready").json()["requests_inside"] == slots + 1
        refused = post(client, PHOTO)
        problem(refused, 503, "queue-full")
        assert int(refused.headers["retry-after"]) >= 1
        slow.go.set()
        assert {future.result().status_code for future in accepted} == {200}
    assert post(client, PHOTO).status_code == 200


@pytest.mark.parametrize(
    ("images", "status", "kind", "advice"),
    [(1, 503, "timeout", "try again"), (2, 413, "batch-too-large", "2 images were not finished within 0.2 s")],
)
def test_a_request_that_takes_too_long_times_out_and_a_batch_that_can_never_finish_is_rejected(
    connect: Connect, images: int, status: int, kind: str, advice: str
) -> None:
    slow = SlowDetector()
    response = post(connect(detector=slow, request_timeout_s=0.2), *[PHOTO] * images)
    slow.go.set()
    assert advice in problem(response, status, kind)
    assert ("retry-after" in response.headers) == (images == 1)


def test_an_unexpected_error_reveals_only_its_id(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    client = connect(detector=Mock(**{"detect.side_effect": RuntimeError("secret detail")}))
    headers = ONE_PHOTO["headers"] | {"x-request-id": "case-7"}
    with caplog.at_level(logging.ERROR, logger="mien.app.service.app"):
        response = client.post("/v1/expressions", content=PHOTO, headers=headers)
    assert "secret" not in response.text
    problem(response, 500, "internal-error")
    assert response.headers["x-request-id"] == "case-7"
    line = json.loads(JsonLines().format(caplog.records[-1]))
    assert (line["level"], "secret detail" in line["exception"]) == ("error", True), "the log has it"
    context = contextvars.copy_context()
    context.run(request_id.set, "case-7")
    assert context.run(RequestFilter().filter, caplog.records[-1])
    assert vars(caplog.records[-1])["suffix"] == " [case-7]"
