"""`POST /v1/expressions`: responses, and problems of a busy or failing service."""

import asyncio
import base64
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient

from mien.app.inference.classifier import Classifier
from mien.app.main import create_app
from mien.app.service.keys import key_hash
from mien.app.service.routes import HeldResponse
from mien.app.service.routes.expressions import _pieces
from mien.app.service.schemas import FaceResult
from mien.app.settings import Settings
from mien.data.contract import EIGHT_LABELS, decode
from tests.support import encoded, face_of, gradient_image, tiny_artifact
from tests.support.app import ONE_PHOTO, PHOTO, Connect, LocalClient, SlowDetector, post, problem


def test_a_multipart_photo_comes_back_with_its_face(client: TestClient) -> None:
    body = post(client, PHOTO).json()
    assert (body["model"], body["detector"], body["provider"]) == ("tiny.test", "drawn", "CPUExecutionProvider")
    assert body["confidence_threshold"] == 0.3, "that of the model"
    (image,) = body["images"]
    assert (image["index"], image["name"], image["width"], image["height"]) == (0, "0.jpg", 640, 480)
    assert set(image["timings_ms"]) == {"decode", "detect", "align", "classify"}
    (face,) = image["faces"]
    assert face["box"] == {"x": 280.0, "y": 200.0, "width": 80.0, "height": 80.0}
    assert face["landmarks"]["left_eye"] == {"x": 304.0, "y": 228.0}
    assert face["confidence"] == face["probabilities"][face["label"]] == max(face["probabilities"].values())


def test_a_bad_image_among_good_ones_has_an_error(connect: Connect) -> None:
    response = post(connect(max_bytes=len(PHOTO)), PHOTO, PHOTO[:2000], b"not an image", PHOTO + b"x", PHOTO)
    assert response.status_code == 200
    first, *bad, last = response.json()["images"]
    assert (len(first["faces"]), len(last["faces"])) == (1, 1)
    assert [image["index"] for image in bad] == [1, 2, 3]
    kinds = ["unreadable-image", "unsupported-image", "payload-too-large"]
    assert [image["error"]["type"] for image in bad] == [f"urn:mien:problem:{kind}" for kind in kinds]
    assert {image["width"] for image in bad} == {None}


def test_a_request_of_bad_images_only_is_a_problem(client: TestClient) -> None:
    problem(post(client, PHOTO[:2000]), 422, "unreadable-image")
    problem(post(client, b"not an image"), 415, "unsupported-image")


def test_options_change_threshold_ranking_and_smallest_face(client: TestClient) -> None:
    face = post(client, PHOTO, confidence_threshold=1, top_k=8, min_face_px=80).json()["images"][0]["faces"][0]
    assert (face["uncertain"], face["reasons"][0]) == (True, "small")
    ranked = sorted(face["probabilities"].items(), key=lambda entry: -entry[1])
    assert [(entry["label"], entry["probability"]) for entry in face["top"]] == ranked
    sure = post(client, PHOTO, confidence_threshold=0).json()["images"][0]["faces"][0]
    assert (sure["label"], sure["uncertain"], len(sure["top"])) == (face["label"], False, 1)
    assert post(client, PHOTO, min_face_px=81).json()["images"][0]["faces"] == []
    with_contempt = face_of(dict(zip(EIGHT_LABELS, np.linspace(0, 0.25, 8).tolist(), strict=True)))
    assert [entry.label for entry in FaceResult.of(with_contempt, top_k=8).top] == list(reversed(EIGHT_LABELS))


def test_the_annotated_image_differs_from_the_photo_at_the_face_only(client: TestClient) -> None:
    drawn = post(client, PHOTO, annotate="true").json()["images"][0]["annotated"]
    assert drawn["media_type"] == "image/jpeg"
    canvas = decode(base64.b64decode(drawn["base64"])).astype(int)
    changed = np.abs(canvas - decode(PHOTO)).max(axis=2) > 40
    assert canvas.shape == (480, 640, 3)
    assert changed[200:280, 278:283].any(), "the left edge of the face's box is drawn"
    assert not changed[:, :150].any()
    assert post(client, PHOTO).json()["images"][0]["annotated"] is None


def test_images_of_a_response_count_in_the_buffer(connect: Connect) -> None:
    photo = encoded(gradient_image(640, 480), "JPEG", quality=1)
    client = connect(max_buffered_bytes=4 * len(photo))
    assert post(client, photo).status_code == 200
    problem(post(client, photo, annotate="true"), 413, "payload-too-large")
    assert client.app.state.service.admission.buffered_bytes.total() == 0  # type: ignore[attr-defined]


def test_a_response_keeps_its_place_until_the_client_has_read_it() -> None:
    events, place = list[object](), ExitStack()
    place.callback(lambda: events.append("released"))

    async def send(message: dict[str, object]) -> None:
        events.append(message.get("body", message["type"]))

    response = HeldResponse(_pieces(b"x" * 300_000), "application/json", place)
    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    asyncio.run(response(scope, send, send))  # type: ignore[arg-type]
    assert b"".join(event for event in events if isinstance(event, bytes)) == b"x" * 300_000
    assert (events[0], len(events), events[-1]) == ("http.response.start", 5, "released")


def test_every_face_has_a_map_and_its_overlay_on_request_if_the_model_has_attention(
    client: TestClient, connect: Connect, tmp_path: Path
) -> None:
    assert "tiny.test" in problem(post(client, PHOTO, explain="true"), 422, "invalid-request")
    artifact = tiny_artifact(tmp_path / "explaining.test", explain=True)
    explaining = connect(classifies=Classifier(Settings(model=artifact, device="cpu")))
    assert explaining.get("/v1/models").json()["models"][0]["explain"] is True
    assert "explanation" not in post(explaining, PHOTO).json()["images"][0]["faces"][0]
    with_face, without = post(explaining, PHOTO, encoded(gradient_image(64, 64)), explain="true").json()["images"]
    assert (without["faces"], without["error"]) == ([], None)
    explanation = with_face["faces"][0]["explanation"]
    assert np.shape(explanation["map"]) == (7, 7)
    assert np.sum(explanation["map"]) == pytest.approx(1, abs=1e-4)
    assert decode(base64.b64decode(explanation["overlay"]["base64"])).shape == (224, 224, 3)


def test_a_crop_from_the_response_classified_again_has_the_same_probabilities(client: TestClient) -> None:
    (face,) = post(client, PHOTO, crops="true").json()["images"][0]["faces"]
    crop = base64.b64decode(face["crop"]["base64"])
    assert (face["crop"]["media_type"], decode(crop).shape) == ("image/png", (112, 112, 3))
    body = post(client, crop, aligned="true", explain="false").json()
    (again,) = body["images"][0]["faces"]
    assert again["probabilities"] == face["probabilities"]
    assert (again["box"], body["detector"]) == ({"x": 0.0, "y": 0.0, "width": 112.0, "height": 112.0}, "none")
    assert "crop" not in again
    assert {"decode", "classify"} <= set(body["images"][0]["timings_ms"])


@pytest.mark.parametrize("form", [False, True])
def test_given_boxes_are_labeled_instead_of_detected_faces(client: TestClient, form: bool) -> None:
    face, other = (280.0, 200.0, 80.0, 80.0), (50.0, 60.0, 70.0, 90.0)
    image = {"base64": base64.b64encode(PHOTO).decode()}

    def with_boxes(*boxes: tuple[float, ...]) -> httpx.Response:
        given = [dict(zip(("x", "y", "width", "height"), box, strict=True)) for box in boxes]
        if form:
            parts = [("images", PHOTO), ("images", PHOTO)]
            return client.post("/v1/expressions", data={"boxes": json.dumps([given, None])}, files=parts)
        return client.post("/v1/expressions", json={"images": [image | {"boxes": given}, image]})

    first, second = with_boxes(other, face).json()["images"]
    assert [tuple(each["box"].values()) for each in first["faces"]] == [other, face]
    assert first["faces"][0]["probabilities"] != first["faces"][1]["probabilities"]
    assert [tuple(each["box"].values()) for each in second["faces"]] == [face], "detected"
    assert with_boxes().json()["images"][0]["faces"] == []


def test_each_request_can_select_a_loaded_model(tmp_path: Path) -> None:
    artifacts = [tiny_artifact(tmp_path / f"{name}.v1", temperature=t) for name, t in (("small", 1.0), ("large", 3.0))]
    settings = Settings(device="cpu", model=artifacts[0], extra_models=(str(artifacts[1]),), detector="builtin")
    with LocalClient(create_app(settings)) as client:
        listed = client.get("/v1/models").json()["models"]
        assert [(one["choice"], one["name"]) for one in listed] == [("small.v1", "small.v1"), ("large.v1", "large.v1")]
        face = encoded(gradient_image(112, 112))
        bodies = [post(client, face, aligned="true", **query).json() for query in ({}, {"model": "large.v1"})]
        assert [body["model"] for body in bodies] == ["small.v1", "large.v1"]
        rows = [body["images"][0]["faces"][0]["probabilities"] for body in bodies]
        for folder, row in zip(artifacts, rows, strict=True):
            (expected,) = Classifier(Settings(model=folder, device="cpu")).classify(decode(face)[None])
            assert list(row.values()) == pytest.approx(expected.tolist(), abs=1e-5)
        assert rows[0] != rows[1]
        assert client.get("/v1/models/large.v1/card").status_code == 200
        assert 'model="large.v1"' in client.get("/metrics").text


@pytest.mark.parametrize(
    ("limits", "inside", "status", "kind"),
    [
        ({"max_concurrent": 1, "max_queue": 1}, 2, 503, "queue-full"),
        ({"max_per_client": 1}, 1, 429, "too-many-requests"),
    ],
)
def test_a_request_too_many_is_rejected_immediately_until_there_is_room(
    connect: Connect, limits: dict[str, int], inside: int, status: int, kind: str
) -> None:
    slow = SlowDetector()
    client = connect(detector=slow, **limits)
    with ThreadPoolExecutor(inside) as pool:
        accepted = [pool.submit(post, client, PHOTO) for _ in range(inside)]
        assert slow.begun.acquire(timeout=10)
        while client.get("/ready").json()["requests_inside"] < inside:
            pass
        assert client.get("/ready").json()["queue_depth"] == inside - 1
        refused = post(client, PHOTO)
        problem(refused, status, kind)
        assert int(refused.headers["retry-after"]) >= 1
        limit = limits.get("max_per_client", 64)
        assert rate_limits(refused) == (limit, limit - inside, int(limit == inside))
        slow.go.set()
        assert {future.result().status_code for future in accepted} == {200}
    assert post(client, PHOTO).status_code == 200


def test_responses_are_compressed_for_clients_that_accept_it(client: TestClient) -> None:
    files = [("images", PHOTO)] * 16
    for accepted in ("gzip", "identity"):
        response = client.post("/v1/expressions", files=files, headers={"accept-encoding": accepted})
        assert response.headers.get("content-encoding", "identity") == accepted
        assert ("content-length" in response.headers) == (accepted == "identity")
        assert len(response.json()["images"]) == 16
        assert response.num_bytes_downloaded < len(response.content) / 3 or accepted == "identity"


def rate_limits(response: httpx.Response) -> tuple[int, ...]:
    return tuple(int(response.headers[f"ratelimit-{name}"]) for name in ("limit", "remaining", "reset"))


def test_only_known_clients_are_told_their_limit(connect: Connect) -> None:
    keyed = connect(api_key_sha256=key_hash("k"), max_per_client=3)
    assert rate_limits(keyed.get("/v1/models", headers={"x-api-key": "k"})) == (3, 3, 0)
    for response in (keyed.get("/v1/models"), keyed.get("/health"), connect(max_per_client=0).get("/v1/models")):
        assert "ratelimit-limit" not in response.headers


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
    with caplog.at_level(logging.ERROR, logger="mien.app.service.middleware"):
        response = client.post("/v1/expressions", content=PHOTO, headers=headers)
    assert "secret" not in response.text
    problem(response, 500, "internal")
    assert response.headers["x-request-id"] == "case-7"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "secret detail" in caplog.text, "the log has it"
    assert 'mien_rejections_total{problem="internal"} 1.0' in client.get("/metrics").text
