"""`WS /v1/stream`: frames in, faces out, never a queue."""

from contextlib import ExitStack

import httpx
import pytest
from fastapi.testclient import TestClient
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect

from tests.service.conftest import PHOTO as FRAME
from tests.service.conftest import Connect, SlowDetector, key_hash, post, problem

STREAM = "ws://localhost/v1/stream"


def rejection(client: TestClient, query: str = "", **options: object) -> httpx.Response:
    """The response to a stream that is rejected before it opens."""
    with pytest.raises(WebSocketDenialResponse) as rejected, client.websocket_connect(STREAM + query, **options):
        pass
    return rejected.value


def test_frames_come_back_with_their_number_and_the_face_as_rest_returns_it_or_an_error(connect: Connect) -> None:
    client = connect()
    expected = post(client, FRAME).json()["images"][0]["faces"]
    with client.websocket_connect(STREAM) as socket:
        for number, frame, status in ((0, FRAME, None), (1, FRAME[:500], 422), (2, FRAME, None)):
            socket.send_bytes(frame)
            result = socket.receive_json()
            assert (result["frame"], result["dropped"], result["width"]) == (number, 0, None if status else 640)
            assert result["faces"] == ([] if status else expected)
            assert (result["error"] or {"status": None})["status"] == status
    text = client.get("/metrics").text
    assert 'mien_stream_frames_total{outcome="processed"} 2.0' in text
    assert 'mien_stream_frames_total{outcome="refused"} 1.0' in text
    assert "mien_streams 0.0" in text


def test_a_slow_service_drops_frames_instead_of_queueing_them(connect: Connect) -> None:
    slow = SlowDetector()
    client = connect(detector=slow)
    with client.websocket_connect(STREAM) as socket:
        socket.send_bytes(FRAME)
        assert slow.begun.acquire(timeout=10)
        for _ in range(50):
            socket.send_bytes(FRAME)
        while 'outcome="dropped"} 49.0' not in client.get("/metrics").text:
            pass
        slow.go.set()
        assert socket.receive_json()["frame"] == 0
        newest = socket.receive_json()
        assert (newest["frame"], newest["dropped"]) == (50, 49)


def test_text_and_oversized_frames_close_the_stream(client: TestClient) -> None:
    for message, code in (({"text": "hello"}, 1003), ({"bytes": bytes(2_000_001)}, 1009)):
        with client.websocket_connect(STREAM) as socket:
            socket.send({"type": "websocket.receive"} | message)
            with pytest.raises(WebSocketDisconnect) as closed:
                socket.receive_json()
            assert closed.value.code == code


def test_streams_are_limited_and_one_without_an_upgrade_is_told_so(client: TestClient) -> None:
    with ExitStack() as streams:
        for _ in range(8):
            streams.enter_context(client.websocket_connect(STREAM))
        refused = rejection(client)
        problem(refused, 503, "queue-full")
        assert "retry-after" in refused.headers
    with client.websocket_connect(STREAM):
        pass
    response = client.get("/v1/stream")
    problem(response, 426, "upgrade-required")
    assert response.headers["upgrade"] == "websocket"


def test_a_stream_requires_a_page_of_the_service_or_a_named_one_and_a_key(connect: Connect) -> None:
    client, key = connect(cors_origins="https://friend.example", api_key_sha256=key_hash("k")), {"x-api-key": "k"}
    problem(rejection(client), 401, "unauthorized")
    problem(rejection(client, headers=key | {"origin": "https://evil.example"}), 403, "foreign-origin")
    query = "?confidence_threshold="
    problem(rejection(client, f"{query}0&confidence_threshold=1", headers=key), 422, "invalid-request")
    for origin, threshold in (("http://localhost", 0), ("https://friend.example", 1)):
        with client.websocket_connect(f"{STREAM}{query}{threshold}", headers=key | {"origin": origin}) as socket:
            socket.send_bytes(FRAME)
            assert [face["uncertain"] for face in socket.receive_json()["faces"]] == [threshold == 1]
